//! Names that `.env` may not set, and names of secrets.

use super::*;

const DANGEROUS_VARIABLES: [&str; 54] = [
    "EXINIT",
    "GVIMINIT",
    "EXECIGNORE",
    "BAZEL_SH",
    "PRE_COMMIT_HOME",
    "STACK_ROOT",
    "GHC_PACKAGE_PATH",
    "NVIM_APPNAME",
    "NODENV_VERSION",
    "M4PATH",
    "ACKRC",
    "GROFF_TMAC_PATH",
    "BC_ENV_ARGS",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "DYLD_INSERT_LIBRARIES",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "NODE_OPTIONS",
    "NODE_PATH",
    "BASH_ENV",
    "ENV",
    "PERL5LIB",
    "PERL5OPT",
    "RUBYOPT",
    "RUBYLIB",
    "PATH",
    "PIP_INDEX_URL",
    "UV_INDEX",
    "npm_config_registry",
    "GIT_SSH_COMMAND",
    "OPENAI_BASE_URL",
    "RYE_PYTHON",
    "USER_SPACE",
    "HOME",
    "SHELL",
    "IFS",
    "SSL_CERT_FILE",
    "https_proxy",
    "TMPDIR",
    "JAVA_TOOL_OPTIONS",
    "CARGO_HOME",
    "GOFLAGS",
    "XDG_CONFIG_HOME",
    "PROMPT_COMMAND",
    "ICU_DATA",
    "TZDIR",
    "WATCH_REPORT_DEPENDENCIES",
    "__PYVENV_LAUNCHER__",
    "KRB5_CONFIG",
    "GDAL_DRIVER_PATH",
    "PYSPARK_PYTHON",
];

#[test]
fn dangerous_variables_are_denied_in_dotenv() {
    let policy = policy();
    for name in DANGEROUS_VARIABLES {
        for name in [name.to_owned(), name.to_lowercase(), name.to_uppercase()] {
            assert!(policy.is_denied_in_dotenv(&name), "{name}");
        }
    }
    for name in ["API_HOST", "COLOUR", "MEDIA_ROOT", "DATA_PATH", "SRC", "APP_VERSION", "PORT", "DB_HOST"] {
        assert!(!policy.is_denied_in_dotenv(name), "{name}");
    }
}

#[test]
fn only_ordinary_names_reach_tools_that_do_not_ask() {
    let policy = policy();
    for name in [
        "APP_THEME",
        "DB_HOST",
        "DATABASE_NAME",
        "PORT",
        "LOG_LEVEL",
        "SITE_URL",
        "UPLOAD_BUCKET",
        "FEATURE_NEW_CART",
        "REGION",
        "ENABLE_CACHE",
        "SMTP_PORT",
        "DEBUG",
    ] {
        assert!(policy.is_open_in_dotenv(name), "{name}");
    }
    for name in DANGEROUS_VARIABLES.into_iter().chain([
        "COLOUR",
        "X",
        "DATA_PATH",
        "SOME_PLUGIN",
        "APP_PASSWORD",
        "ODD_TOOL_COMMAND",
        "SOME_BINARY_MIRROR",
        "APP_PRELOAD",
        "DB_OPTIONS",
        "NEW_LOADER_DIR",
        "app_theme",
    ]) {
        assert!(!policy.is_open_in_dotenv(name), "{name}");
    }
    let (world, programs) = (TestContext::new(), FakeFinder::default());
    world.write("project/.env", "COLOUR=blue\nAPP_THEME=dark\nDB_PASSWORD=x\nPATH=evil\n");
    let asks = json!({"env": {"TINT": "${COLOUR}"}});
    let variables = |tool| TestRun { tool, ..TestRun::new(&world, &programs) }.environment().variables;
    assert_eq!(variables(json!({})), map(&[("APP_THEME", "dark")]));
    assert_eq!(variables(json!({"pass": ["COLOUR"]})), map(&[("APP_THEME", "dark"), ("COLOUR", "blue")]));
    assert_eq!(variables(asks), map(&[("APP_THEME", "dark"), ("TINT", "blue")]));
    assert_eq!(unlisted_dotenv_names(&world.project(), &policy), ["COLOUR"]);
    assert_eq!(unlisted_dotenv_names(&world.project(), &policy_passing(&["COLOUR"])), Vec::<String>::new());
}

#[test]
fn secrets_are_known_by_their_names() {
    let policy = policy();
    for name in ["STRIPE_SK", "DSN", "SALT", "PGPASS", "PASS", "MYSQL_PASS", "SENTRY_DSN", "PRIVATE_PEM"] {
        assert!(policy.is_redacted(name), "{name}");
    }
    for name in ["COMPASS", "BYPASS_CACHE", "TASK", "SALTED_FISH", "LICENSE", "CIPHER", "SEED", "RISK"] {
        assert!(!policy.is_redacted(name), "{name}");
    }
}

proptest! {
    #[test]
    fn no_dotenv_sets_a_denied_variable(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec!["", "export ", "\u{feff}", " ", "\t", "export\t", "#", "'", "A=\""]),
                prop_oneof![prop::sample::select(DANGEROUS_VARIABLES.to_vec()).prop_map(str::to_owned), "[A-Za-z_]{1,6}", "\\PC{0,6}"],
                prop::sample::select(vec!["=", " = ", "=\"", "='", ":", "=\0", "=\\"]),
                "\\PC{0,10}",
                prop::sample::select(vec!["\n", "\r\n", "\r", "\"\n", "'\n", "\\\n", ""]),
            ),
            0..12,
        ),
    ) {
        let text: String = lines.iter().map(|(a, b, c, d, e)| format!("{a}{b}{c}{d}{e}")).collect();
        let (world, programs) = (TestContext::new(), FakeFinder::default());
        world.write("project/.env", &text);
        let approved = TestRun::new(&world, &programs).environment();
        let policy = policy();
        for (name, value) in &approved.variables {
            prop_assert!(!policy.is_denied_in_dotenv(name), "{name}");
            prop_assert!(is_variable_name(name) && !value.contains('\0'));
        }
        let unapproved = TestRun { is_approved: false, ..TestRun::new(&world, &programs) }.environment();
        prop_assert_eq!(unapproved.variables, BTreeMap::new());
    }
}

//! What a tool leaves in the project's git folder itself for the user's next command: links that git writes through, and indexes
//! whose paths lead out of the files.

use std::fs;
use std::path::PathBuf;

use crate::git_planted::{GitUser, moved_aside};

/// A program for the sandbox that writes an index with one file at `path`. Git itself refuses such a path.
fn write_index(path: &str) -> String {
    let program = "import hashlib, struct, subprocess, sys; name = sys.argv[1].encode(); \
         blob = subprocess.run(['git', 'hash-object', '-w', '--stdin'], input=b'x', capture_output=True).stdout.strip(); \
         entry = struct.pack('>10I', *[0] * 6, 0o100644, 0, 0, 0) + bytes.fromhex(blob.decode()) + struct.pack('>H', len(name)) + name; \
         entry += bytes((len(entry) + 8) // 8 * 8 - len(entry)); \
         whole = b'DIRC' + struct.pack('>II', 2, 1) + entry; \
         open('new', 'wb').write(whole + hashlib.sha1(whole).digest())";
    format!("python3 -c \"{program}\" {path} && mv new .git/index")
}

fn refused(world: &GitUser, command: &str) -> Vec<PathBuf> {
    let ran = world.bash(command);
    assert_ne!(ran.exit, 0, "{command}: {ran}");
    moved_aside(&ran).into_iter().map(PathBuf::from).collect()
}

#[test]
fn indexes_with_paths_outside_of_the_files_are_refused() {
    for path in [".git/config", "../outside", "/absolute", "a/./b"] {
        let world = GitUser::with_repository();
        let config = fs::read(world.project().join(".git/config")).expect("a config");
        assert_eq!(refused(&world, &write_index(path)), [world.project().join(".git/index")], "{path}");
        let _ = world.user.program("git").current_dir(world.project()).args(["restore", "."]).output();
        assert_eq!(fs::read(world.project().join(".git/config")).expect("a config"), config, "{path}");
        assert!(!world.project().parent().expect("a folder").join("outside").exists());
    }
    // A usual one stays.
    let world = GitUser::with_repository();
    let ran = world.bash(&write_index("a/b"));
    assert_eq!((ran.exit, moved_aside(&ran)), (0, Vec::new()), "{ran}");
}

#[test]
fn links_in_the_git_folder_are_refused() {
    let world = GitUser::with_repository();
    let config = fs::read(world.project().join(".git/config")).expect("a config");
    let git = world.project().join(".git");
    for link in ["COMMIT_EDITMSG", "FETCH_HEAD", "objects/00"] {
        let command = format!("rm -rf .git/{link}; ln -s config .git/{link}");
        assert_eq!(refused(&world, &command), [git.join(link)], "{link}");
    }
    world.git("project", &["commit", "-q", "--allow-empty", "-m", "text"]);
    assert_eq!(fs::read(git.join("config")).expect("a config"), config);
    // One that the user made stays.
    std::os::unix::fs::symlink("HEAD", git.join("own")).expect("a link");
    let ran =
        world.bash("echo x > file && git add file && git -c user.name=a -c user.email=a@b commit -qm x");
    assert_eq!((ran.exit, moved_aside(&ran)), (0, Vec::new()), "{ran}");
}

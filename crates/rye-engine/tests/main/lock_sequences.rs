//! Whatever happened before, `lock update` leads to a state that runs. Every short sequence of what can happen to a
//! tool and its lockfiles is tried, and many long ones.

use std::path::{Path, PathBuf};

use rye_engine::lockfiles::{self, LockMode, LockState, LockedElement, LockedFile, LockedTool, ResolvedTool};
use rye_engine::verbs::init;
use rye_engine::verbs::lock::{self, LockfileChange};
use rye_engine::{Engine, EngineOptions, WallClock};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::TestContext;

const ID: &str = "team/x";

struct FixedClock;

impl WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

fn roots(world: &TestContext, project: &Path) -> Roots {
    Roots {
        project: Some(project.to_owned()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

/// What can happen between two runs.
#[derive(Clone, Copy, Debug)]
enum Event {
    Run,
    Accept,
    AcceptInProject,
    AcceptForUser,
    ToggleProjectTool,
    ToggleUserTool,
    Edit,
    ToggleVersion,
    ToggleImport,
    Move,
    Damage(usize),
    Mislabel,
}

const EVENTS: [Event; 14] = [
    Event::Run,
    Event::Accept,
    Event::AcceptInProject,
    Event::AcceptForUser,
    Event::ToggleProjectTool,
    Event::ToggleUserTool,
    Event::Edit,
    Event::ToggleVersion,
    Event::ToggleImport,
    Event::Move,
    Event::Damage(0),
    Event::Damage(1),
    Event::Damage(2),
    Event::Mislabel,
];

/// A project at one of two places, and the tool as it is now.
struct Fixture {
    world: TestContext,
    engines: [Engine; 2],
    location: usize,
    has_project_tool: bool,
    has_user_tool: bool,
    version: &'static str,
    content: [u32; 3],
    has_import: bool,
}

impl Fixture {
    fn new() -> Self {
        let world = TestContext::new();
        init::init(&roots(&world, &world.project()), &world.project(), "test", || Box::new(FixedClock))
            .expect("init");
        let open = |project: PathBuf| {
            Engine::open(roots(&world, &project), EngineOptions::default(), Box::new(FixedClock))
                .expect("engine")
        };
        let engines = [open(world.project()), open(world.path().join("moved"))];
        let mut fixture = Self {
            world,
            engines,
            location: 0,
            has_project_tool: false,
            has_user_tool: true,
            version: "1.0.0",
            content: [0; 3],
            has_import: false,
        };
        fixture.reset();
        fixture
    }

    fn reset(&mut self) {
        if self.location == 1 {
            self.apply(Event::Move);
        }
        for folder in [self.world.home().join(".ai/lockfiles"), self.world.project().join("lockfiles")] {
            lillux::file::remove_tree(&folder).expect("removed");
        }
        (self.has_project_tool, self.has_user_tool, self.has_import) = (false, true, false);
        (self.version, self.content) = ("1.0.0", [0; 3]);
    }

    fn engine(&self) -> &Engine {
        &self.engines[self.location]
    }

    fn project_at(&self, location: usize) -> PathBuf {
        if location == 0 { self.world.project() } else { self.world.path().join("moved") }
    }

    /// The space the tool is found in, and where its content is counted.
    fn space(&self) -> (&'static str, usize) {
        match (self.has_project_tool, self.has_user_tool) {
            (true, _) => ("project", 0),
            (false, true) => ("user", 1),
            (false, false) => ("system:team", 2),
        }
    }

    fn resolved(&self) -> ResolvedTool {
        let (space, index) = self.space();
        let content = format!("{space} {}", self.content[index]);
        let entry = LockedElement {
            item_id: ID.to_owned(),
            space: space.to_owned(),
            tool_type: None,
            executor_id: None,
            integrity: lillux::Digest::of(content.as_bytes()).to_hex(),
            provider_id: None,
            provider_version: None,
        };
        let import = || LockedFile { path: "json.py".to_owned(), integrity: entry.integrity.clone() };
        ResolvedTool {
            root: LockedTool {
                tool_id: ID.to_owned(),
                version: self.version.to_owned(),
                integrity: entry.integrity.clone(),
                provider_id: None,
                provider_version: None,
            },
            verified_deps: self.has_import.then(|| vec![import()]),
            chain: vec![entry],
            dependencies: None,
            uses_dev_mode: false,
        }
    }

    fn update(&self, scope: Option<SpaceTier>) -> rye_engine::Result<lock::LockUpdate> {
        let item = ItemRef::new(ItemType::Tool, ItemId::new(ID).expect("id"));
        lock::update(self.engine(), &item, scope, &|_| Ok(self.resolved()))
    }

    /// The names a lockfile of user scope may have for the tool here.
    fn user_lockfile_paths(&self) -> [PathBuf; 3] {
        let mark = |path: &Path| {
            lillux::Digest::of(path.to_str().expect("text").as_bytes()).to_hex()[..8].to_owned()
        };
        let (project_suffix, user) = (mark(&self.project_at(self.location)), mark(&self.world.home()));
        let folder = self.world.home().join(".ai/lockfiles");
        [String::new(), format!("+{project_suffix}"), format!("+{user}")]
            .map(|mark| folder.join(format!("{ID}@{}{mark}.lock.json", self.version)))
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Run => {
                let resolved = self.resolved();
                if lockfiles::enforce(self.engine(), &resolved, LockMode::Enforce).is_ok() {
                    lockfiles::record(self.engine(), &resolved, LockMode::Enforce).expect("recorded");
                }
            }
            Event::Accept => self.assert_accepted(&event),
            Event::AcceptInProject => {
                self.update(Some(SpaceTier::Project)).expect("updated");
            }
            Event::AcceptForUser => {
                self.update(Some(SpaceTier::User)).expect("updated");
            }
            Event::ToggleProjectTool => self.has_project_tool = !self.has_project_tool,
            Event::ToggleUserTool => self.has_user_tool = !self.has_user_tool,
            Event::Edit => self.content[self.space().1] += 1,
            Event::ToggleVersion => self.version = if self.version == "1.0.0" { "1.1.0" } else { "1.0.0" },
            Event::ToggleImport => self.has_import = !self.has_import,
            Event::Move => {
                let (from, to) = (self.project_at(self.location), self.project_at(1 - self.location));
                lillux::file::rename_dir(&from, &to).expect("moved");
                self.location = 1 - self.location;
            }
            Event::Damage(index) => self.write(&self.user_lockfile_paths()[index], "{"),
            Event::Mislabel => {
                // A lockfile of another tool and another project under this one's name.
                let mut lockfile =
                    self.resolved().to_lockfile("now".to_owned(), Some("/elsewhere".to_owned()));
                lockfile.root.tool_id = "team/y".to_owned();
                self.write(&self.user_lockfile_paths()[0], &serde_json::to_string(&lockfile).expect("JSON"));
            }
        }
    }

    fn write(&self, path: &Path, text: &str) {
        let relative = path.strip_prefix(self.world.path()).expect("inside").to_str().expect("text");
        self.world.write(relative, text);
    }

    fn assert_accepted(&self, after: &impl std::fmt::Debug) {
        let updated = self.update(None);
        let is_whole = updated.as_ref().is_ok_and(|updated| updated.remaining.is_none());
        assert!(is_whole, "{after:?}: {updated:?}");
        let state = lockfiles::enforce(self.engine(), &self.resolved(), LockMode::Locked);
        assert!(matches!(state, Ok(LockState::Matched { .. })), "{after:?}: {state:?}");
    }

    fn assert_recovers(&mut self, events: &[Event]) {
        self.reset();
        for event in events {
            self.apply(*event);
        }
        self.assert_accepted(&events);
        // Accepting twice changes nothing more.
        let again = self.update(None).expect("updated");
        assert!(
            again.lockfiles.iter().all(|file| file.change == LockfileChange::Unchanged),
            "{events:?}: {again:?}"
        );
    }
}

#[test]
fn update_recovers_after_any_short_sequence() {
    let mut fixture = Fixture::new();
    for first in EVENTS {
        for second in EVENTS {
            fixture.assert_recovers(&[first, second]);
            for third in [Event::ToggleProjectTool, Event::Move] {
                fixture.assert_recovers(&[first, second, third]);
            }
        }
    }
}

#[test]
fn update_recovers_after_any_long_sequence() {
    let mut fixture = Fixture::new();
    // A plain generator with a fixed seed: the same sequences each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        EVENTS[usize::try_from(state % EVENTS.len() as u64).expect("small")]
    };
    for length in 0..150 {
        let events: Vec<Event> = (0..4 + length % 12).map(|_| next()).collect();
        fixture.assert_recovers(&events);
    }
}

fn read(path: &Path) -> Vec<u8> {
    lillux::file::read_bounded(path, 1 << 20).expect("a lockfile").0
}

#[test]
fn unshadowing_returns_to_the_users_own_pin() {
    let mut fixture = Fixture::new();
    fixture.apply(Event::Run);
    let own = fixture.user_lockfile_paths()[0].clone();
    let pinned = read(&own);
    fixture.apply(Event::ToggleProjectTool);
    fixture.apply(Event::Accept);
    assert_eq!(read(&own), pinned);
    fixture.apply(Event::ToggleProjectTool);
    let refused =
        lockfiles::enforce(fixture.engine(), &fixture.resolved(), LockMode::Enforce).expect_err("refused");
    assert_eq!(refused.code, rye_engine::Code::LockMismatch);
    let updated = fixture.update(None).expect("updated");
    let changes: Vec<_> = updated.lockfiles.iter().map(|file| (file.path.clone(), file.change)).collect();
    let project = fixture.user_lockfile_paths()[1].clone();
    assert_eq!(
        changes,
        [(own.clone(), LockfileChange::Unchanged), (project.clone(), LockfileChange::Removed)]
    );
    assert_eq!(read(&own), pinned);
    assert!(!project.exists());
    fixture.assert_accepted(&"unshadowed");
}

#[test]
fn pins_of_moved_project_are_reported() {
    let mut fixture = Fixture::new();
    fixture.apply(Event::ToggleProjectTool);
    fixture.apply(Event::Run);
    let old = fixture.project_at(0).display().to_string();
    fixture.apply(Event::Move);
    let missing = |fixture: &Fixture| {
        lockfiles::enforce(fixture.engine(), &fixture.resolved(), LockMode::Locked).expect_err("no pin").hints
    };
    let hints = missing(&fixture);
    let named = |words: &str| hints.iter().any(|hint| hint.contains(&old) && hint.contains(words));
    assert!(named("pins do not follow a moved project (nothing changed since)"), "{hints:?}");
    fixture.apply(Event::Edit);
    let hints = missing(&fixture);
    assert!(hints.iter().any(|hint| hint.contains(&old) && hint.contains("changed: pinned")), "{hints:?}");
}

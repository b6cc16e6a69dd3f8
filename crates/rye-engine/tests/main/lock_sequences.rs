//! Whatever happened before, `lock update` leads to a state that runs. Every short sequence of what can happen to a
//! tool and its lockfiles is tried, and many long ones.

use std::path::{Path, PathBuf};

use rye_engine::lockfiles::{self, Demand, Entry, Resolved, Root, State, VerifiedDep};
use rye_engine::verbs::init;
use rye_engine::verbs::lock::{self, Change};
use rye_engine::{Clock, Engine, Options};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::World;

const ID: &str = "team/x";

struct Noon;

impl Clock for Noon {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

fn roots(world: &World, project: &Path) -> Roots {
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
    SwitchProjectTool,
    SwitchUserTool,
    Edit,
    SwitchVersion,
    SwitchImport,
    Move,
    Damage(usize),
    Mislabel,
}

const EVENTS: [Event; 14] = [
    Event::Run,
    Event::Accept,
    Event::AcceptInProject,
    Event::AcceptForUser,
    Event::SwitchProjectTool,
    Event::SwitchUserTool,
    Event::Edit,
    Event::SwitchVersion,
    Event::SwitchImport,
    Event::Move,
    Event::Damage(0),
    Event::Damage(1),
    Event::Damage(2),
    Event::Mislabel,
];

/// A project at one of two places, and the tool as it is now.
struct Scene {
    world: World,
    engines: [Engine; 2],
    place: usize,
    has_project_tool: bool,
    has_user_tool: bool,
    version: &'static str,
    content: [u32; 3],
    has_import: bool,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        init::init(&roots(&world, &world.project()), &world.project(), "test", || Box::new(Noon))
            .expect("init");
        let open = |project: PathBuf| {
            Engine::open(roots(&world, &project), Options::default(), Box::new(Noon)).expect("engine")
        };
        let engines = [open(world.project()), open(world.path().join("moved"))];
        let mut scene = Self {
            world,
            engines,
            place: 0,
            has_project_tool: false,
            has_user_tool: true,
            version: "1.0.0",
            content: [0; 3],
            has_import: false,
        };
        scene.reset();
        scene
    }

    fn reset(&mut self) {
        if self.place == 1 {
            self.apply(Event::Move);
        }
        for folder in [self.world.home().join(".ai/lockfiles"), self.world.project().join("lockfiles")] {
            lillux::file::remove_tree(&folder).expect("removed");
        }
        (self.has_project_tool, self.has_user_tool, self.has_import) = (false, true, false);
        (self.version, self.content) = ("1.0.0", [0; 3]);
    }

    fn engine(&self) -> &Engine {
        &self.engines[self.place]
    }

    fn place_of(&self, place: usize) -> PathBuf {
        if place == 0 { self.world.project() } else { self.world.path().join("moved") }
    }

    /// The space the tool is found in, and where its content is counted.
    fn space(&self) -> (&'static str, usize) {
        match (self.has_project_tool, self.has_user_tool) {
            (true, _) => ("project", 0),
            (false, true) => ("user", 1),
            (false, false) => ("system:team", 2),
        }
    }

    fn resolved(&self) -> Resolved {
        let (space, index) = self.space();
        let content = format!("{space} {}", self.content[index]);
        let entry = Entry {
            item_id: ID.to_owned(),
            space: space.to_owned(),
            tool_type: None,
            executor_id: None,
            integrity: lillux::Digest::of(content.as_bytes()).to_hex(),
            provider_id: None,
            provider_version: None,
        };
        let import = || VerifiedDep { path: "json.py".to_owned(), integrity: entry.integrity.clone() };
        Resolved {
            root: Root {
                tool_id: ID.to_owned(),
                version: self.version.to_owned(),
                integrity: entry.integrity.clone(),
                provider_id: None,
                provider_version: None,
            },
            verified_deps: self.has_import.then(|| vec![import()]),
            chain: vec![entry],
            dependencies: None,
            is_forgiven: false,
        }
    }

    fn update(&self, scope: Option<Tier>) -> rye_engine::Result<lock::Updated> {
        let item = ItemRef::new(ItemType::Tool, ItemId::new(ID).expect("id"));
        lock::update(self.engine(), &item, scope, &|_| Ok(self.resolved()))
    }

    /// The names a lockfile of user scope may have for the tool here.
    fn user_names(&self) -> [PathBuf; 3] {
        let mark = |path: &Path| {
            lillux::Digest::of(path.to_str().expect("text").as_bytes()).to_hex()[..8].to_owned()
        };
        let (here, user) = (mark(&self.place_of(self.place)), mark(&self.world.home()));
        let folder = self.world.home().join(".ai/lockfiles");
        [String::new(), format!("+{here}"), format!("+{user}")]
            .map(|mark| folder.join(format!("{ID}@{}{mark}.lock.json", self.version)))
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Run => {
                let resolved = self.resolved();
                if lockfiles::enforce(self.engine(), &resolved, Demand::Hold).is_ok() {
                    lockfiles::record(self.engine(), &resolved, Demand::Hold).expect("recorded");
                }
            }
            Event::Accept => self.assert_accepted(&event),
            Event::AcceptInProject => {
                self.update(Some(Tier::Project)).expect("updated");
            }
            Event::AcceptForUser => {
                self.update(Some(Tier::User)).expect("updated");
            }
            Event::SwitchProjectTool => self.has_project_tool = !self.has_project_tool,
            Event::SwitchUserTool => self.has_user_tool = !self.has_user_tool,
            Event::Edit => self.content[self.space().1] += 1,
            Event::SwitchVersion => self.version = if self.version == "1.0.0" { "1.1.0" } else { "1.0.0" },
            Event::SwitchImport => self.has_import = !self.has_import,
            Event::Move => {
                let (from, to) = (self.place_of(self.place), self.place_of(1 - self.place));
                lillux::file::rename_folder(&from, &to).expect("moved");
                self.place = 1 - self.place;
            }
            Event::Damage(index) => self.write(&self.user_names()[index], "{"),
            Event::Mislabel => {
                // A lockfile of another tool and another project under this one's name.
                let mut lockfile =
                    self.resolved().to_lockfile("now".to_owned(), Some("/elsewhere".to_owned()));
                lockfile.root.tool_id = "team/y".to_owned();
                self.write(&self.user_names()[0], &serde_json::to_string(&lockfile).expect("JSON"));
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
        let state = lockfiles::enforce(self.engine(), &self.resolved(), Demand::Locked);
        assert!(matches!(state, Ok(State::Held { .. })), "{after:?}: {state:?}");
    }

    fn try_out(&mut self, events: &[Event]) {
        self.reset();
        for event in events {
            self.apply(*event);
        }
        self.assert_accepted(&events);
        // Accepting twice changes nothing more.
        let again = self.update(None).expect("updated");
        assert!(again.lockfiles.iter().all(|file| file.change == Change::Unchanged), "{events:?}: {again:?}");
    }
}

#[test]
fn update_after_any_short_sequence_leads_to_running() {
    let mut scene = Scene::new();
    for first in EVENTS {
        for second in EVENTS {
            scene.try_out(&[first, second]);
            for third in [Event::SwitchProjectTool, Event::Move] {
                scene.try_out(&[first, second, third]);
            }
        }
    }
}

#[test]
fn update_after_any_long_sequence_leads_to_running() {
    let mut scene = Scene::new();
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
        scene.try_out(&events);
    }
}

fn read(path: &Path) -> Vec<u8> {
    lillux::file::read_bounded(path, 1 << 20).expect("a lockfile").0
}

#[test]
fn unshadowing_returns_to_the_users_own_pin() {
    let mut scene = Scene::new();
    scene.apply(Event::Run);
    let own = scene.user_names()[0].clone();
    let pinned = read(&own);
    scene.apply(Event::SwitchProjectTool);
    scene.apply(Event::Accept);
    assert_eq!(read(&own), pinned);
    scene.apply(Event::SwitchProjectTool);
    let refused = lockfiles::enforce(scene.engine(), &scene.resolved(), Demand::Hold).expect_err("refused");
    assert_eq!(refused.code, rye_engine::Code::LockMismatch);
    let updated = scene.update(None).expect("updated");
    let changes: Vec<_> = updated.lockfiles.iter().map(|file| (file.path.clone(), file.change)).collect();
    let project = scene.user_names()[1].clone();
    assert_eq!(changes, [(own.clone(), Change::Unchanged), (project.clone(), Change::Removed)]);
    assert_eq!(read(&own), pinned);
    assert!(!project.exists());
    scene.assert_accepted(&"unshadowed");
}

#[test]
fn pins_of_a_moved_project_are_named() {
    let mut scene = Scene::new();
    scene.apply(Event::SwitchProjectTool);
    scene.apply(Event::Run);
    let old = scene.place_of(0).display().to_string();
    scene.apply(Event::Move);
    let missing = |scene: &Scene| {
        lockfiles::enforce(scene.engine(), &scene.resolved(), Demand::Locked).expect_err("no pin").hints
    };
    let hints = missing(&scene);
    let named = |words: &str| hints.iter().any(|hint| hint.contains(&old) && hint.contains(words));
    assert!(named("pins do not follow a moved project (nothing changed since)"), "{hints:?}");
    scene.apply(Event::Edit);
    let hints = missing(&scene);
    assert!(hints.iter().any(|hint| hint.contains(&old) && hint.contains("changed: pinned")), "{hints:?}");
}

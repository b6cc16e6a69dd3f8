//! The packages a tool asks for (`DEPENDENCIES`): what is asked, what of it may be asked, how an installer is called and
//! what its report says. Nothing is started or installed here.

mod installer_output;
mod node;
mod python;
mod record;
mod requirement;

use std::path::PathBuf;

pub use lillux::lockfile::LockedPackage;
use rye_item::text::one_line;
use serde_json::Value;

pub use installer_output::{is_hash_mismatch, last_lines};
pub use node::{npm_install_command, npm_lock_command, package_json, parse_package_lock};
pub use python::{
    IndexSettings, Installer, MIN_PIP_VERSION, choose_installer, has_index_settings, parse_compiled,
    parse_pip_report, parse_pip_version, pins_file, pip_install, requirements_file, uv_compile, uv_install,
    uv_venv, venv_python,
};
pub use record::{PackageRecord, cache_key};

use crate::chain::{Chain, Primitive};
use crate::environment::{self, EnvironmentPolicy};

/// The field that asks for packages.
pub const DEPENDENCIES_FIELD: &str = "dependencies";
/// A tool asks for no more than this.
pub const MAX_REQUIREMENTS: usize = 100;
/// And gets no more than this.
pub const MAX_PACKAGES: usize = 2000;
/// One requirement is no longer.
const MAX_REQUIREMENT_LENGTH: usize = 200;

/// Where packages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecosystem {
    /// Wheels, for tools that run on Python.
    Python,
    /// npm packages, for tools that run on Node.
    Node,
}

impl Ecosystem {
    /// The variable that names the interpreter.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Python => "RYE_PYTHON",
            Self::Node => "RYE_NODE",
        }
    }

    /// The name of its folder in the cache.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    fn from_variable(variable: &str) -> Option<Self> {
        [Self::Python, Self::Node].into_iter().find(|ecosystem| ecosystem.variable() == variable)
    }
}

/// What a chain asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedPackages {
    /// Where it comes from.
    pub ecosystem: Ecosystem,
    /// The requirements in their plain form, sorted, each once.
    pub requirements: Vec<Requirement>,
    /// The ids of the elements that ask.
    pub requested_by: Vec<String>,
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The package's name, as its index compares names.
    pub name: String,
    /// The whole requirement without blanks: `requests[socks]>=2,<3`, or `left-pad@1.3.0`.
    pub text: String,
    /// The part after the name: `>=2,<3`, or `1.3.0`.
    pub version: String,
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Why packages cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    /// The list of an element is not a list of requirements.
    #[error("`dependencies` of `{item}` must be a list of texts, at most {MAX_REQUIREMENTS}")]
    InvalidList {
        /// The element.
        item: String,
    },
    /// One requirement is not understood, or not allowed.
    #[error("`{item}` asks for the package `{requirement}`: {reason}")]
    InvalidRequirement {
        /// The element.
        item: String,
        /// What it says.
        requirement: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The chain runs on neither Python nor Node.
    #[error("`{item}` asks for packages, which only tools that run on Python or Node can have")]
    NoEcosystem {
        /// The element.
        item: String,
    },
    /// A pinned package cannot be what an index holds.
    #[error("the lockfile pins the package `{name}`, but {reason}")]
    InvalidPin {
        /// The package.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A lockfile pins packages, and one that is asked for is not among them.
    #[error("the lockfile pins packages, but not `{name}`, which the tool asks for")]
    Unpinned {
        /// The package.
        name: String,
    },
    /// What the installer reports is not understood.
    #[error("the report of the installer is not understood: {reason}")]
    InvalidReport {
        /// What is wrong.
        reason: String,
    },
}

fn invalid_report(reason: impl Into<String>) -> PackageError {
    PackageError::InvalidReport { reason: reason.into() }
}

/// What the elements of a chain ask for; `None` when that is nothing.
///
/// # Errors
/// When a requirement is not allowed, or the chain runs on what has no packages.
pub fn requested_packages(
    chain: &Chain,
    policy: &EnvironmentPolicy,
) -> Result<Option<RequestedPackages>, PackageError> {
    if chain.primitive() != Primitive::Subprocess {
        return Ok(None);
    }
    let elements = chain.elements().iter();
    let lists: Vec<(String, &Value)> = elements
        .filter_map(|element| Some((element.id().to_string(), element.field(DEPENDENCIES_FIELD)?)))
        .filter(|(_, list)| list.as_array().is_none_or(|list| !list.is_empty()))
        .collect();
    let Some((item, _)) = lists.first() else { return Ok(None) };
    let variables = chain
        .elements()
        .iter()
        .filter_map(|element| environment::interpreter_variable(element.field("env_config"), policy));
    let ecosystem = variables
        .filter_map(|variable| Ecosystem::from_variable(&variable))
        .next()
        .ok_or_else(|| PackageError::NoEcosystem { item: item.clone() })?;
    let mut requirements = Vec::new();
    for (item, list) in &lists {
        requirements.extend(parse_requirements(item, list, ecosystem)?);
    }
    requirements.sort();
    requirements.dedup();
    let requested_by = lists.into_iter().map(|(item, _)| item).collect();
    Ok(Some(RequestedPackages { ecosystem, requirements, requested_by }))
}

fn parse_requirements(
    item: &str,
    list: &Value,
    ecosystem: Ecosystem,
) -> Result<Vec<Requirement>, PackageError> {
    let shape = || PackageError::InvalidList { item: item.to_owned() };
    let list = list.as_array().filter(|list| list.len() <= MAX_REQUIREMENTS).ok_or_else(shape)?;
    let read = |text: &Value| {
        let text = text.as_str().ok_or_else(shape)?;
        let read = match ecosystem {
            _ if text.len() > MAX_REQUIREMENT_LENGTH => Err("it is too long"),
            Ecosystem::Python => requirement::parse_python(text),
            Ecosystem::Node => requirement::parse_node(text),
        };
        read.map_err(|reason| PackageError::InvalidRequirement {
            item: item.to_owned(),
            requirement: one_line(text).chars().take(MAX_REQUIREMENT_LENGTH).collect(),
            reason,
        })
    };
    list.iter().map(read).collect()
}

/// Checks packages that a lockfile pins: its author decides what is installed, so nothing in it may be read as
/// anything but a name, a version and hashes; and they must be an answer to what is asked.
///
/// # Errors
/// At the first that is not.
pub fn check_pins(pins: &[LockedPackage], requested: &RequestedPackages) -> Result<(), PackageError> {
    let wrong = |name: &str, reason| PackageError::InvalidPin {
        name: one_line(name).chars().take(MAX_REQUIREMENT_LENGTH).collect(),
        reason,
    };
    for pin in pins.iter().take(MAX_PACKAGES + 1) {
        let is_name = match requested.ecosystem {
            Ecosystem::Python => requirement::is_python_name(&pin.name),
            Ecosystem::Node => requirement::is_node_name(&pin.name),
        };
        if !is_name || pin.name.len() > MAX_REQUIREMENT_LENGTH {
            return Err(wrong(&pin.name, "invalid package name"));
        }
        if !requirement::is_version(&pin.version) || pin.version.len() > MAX_REQUIREMENT_LENGTH {
            return Err(wrong(&pin.name, "its version is not one"));
        }
        let is_hash = match requested.ecosystem {
            Ecosystem::Python => python::is_integrity(&pin.integrity),
            Ecosystem::Node => node::is_integrity(&pin.integrity),
        };
        if !is_hash {
            return Err(wrong(&pin.name, "its hash is not one"));
        }
    }
    if pins.len() > MAX_PACKAGES {
        return Err(wrong("…", "there are too many"));
    }
    for requirement in &requested.requirements {
        let is_pinned = pins.iter().any(|pin| match requested.ecosystem {
            Ecosystem::Python => requirement::normalize_name(&pin.name) == requirement.name,
            Ecosystem::Node => pin.name == requirement.name,
        });
        if !is_pinned {
            return Err(PackageError::Unpinned { name: requirement.name.clone() });
        }
    }
    Ok(())
}

/// Sorts packages and leaves each once.
fn sort_and_dedup(mut packages: Vec<LockedPackage>) -> Vec<LockedPackage> {
    packages.sort_by(|one, other| {
        (&one.name, &one.version, &one.integrity).cmp(&(&other.name, &other.version, &other.integrity))
    });
    packages.dedup();
    packages
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

//! Bounds of a run: those of the settings, tightened by the tool's.

use lillux::process::ProcessLimits;
use serde::Deserialize;

use super::SandboxError;

/// Bounds of the settings, or of a tool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitSettings {
    processes: Option<u32>,
    file_megabytes: Option<u64>,
    open_files: Option<u64>,
    memory_megabytes: Option<u64>,
    output_kib: Option<u64>,
    result_megabytes: Option<u64>,
}

impl LimitSettings {
    /// These bounds, tightened by the tool's. A tool cannot loosen them.
    pub(super) fn tightened_by(&self, tool: &Self) -> Result<ProcessLimits, SandboxError> {
        let defaults = ProcessLimits::default();
        let bytes = |own: Option<u64>, tool: Option<u64>, scale: u64, defaults: u64| {
            let own = own.map_or(defaults, |own| own.saturating_mul(scale));
            tool.map_or(own, |tool| own.min(tool.saturating_mul(scale)))
        };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let own = self.processes.unwrap_or(defaults.processes);
        let limits = ProcessLimits {
            processes: tool.processes.map_or(own, |tool| own.min(tool)),
            file_bytes: bytes(self.file_megabytes, tool.file_megabytes, 1 << 20, defaults.file_bytes),
            open_files: bytes(self.open_files, tool.open_files, 1, defaults.open_files),
            memory_bytes: match (self.memory_megabytes, tool.memory_megabytes) {
                (None, None) => None,
                (own, tool) => Some(bytes(own, tool, 1 << 20, u64::MAX)),
            },
            output_bytes: size(bytes(
                self.output_kib,
                tool.output_kib,
                1 << 10,
                defaults.output_bytes as u64,
            )),
            result_bytes: size(bytes(
                self.result_megabytes,
                tool.result_megabytes,
                1 << 20,
                defaults.result_bytes as u64,
            )),
        };
        if limits.processes == 0 || limits.open_files < 4 || limits.memory_bytes == Some(0) {
            let reason = "no program runs without a process, four open files and memory".to_owned();
            let is_own = self.processes == Some(0)
                || self.open_files.is_some_and(|count| count < 4)
                || self.memory_megabytes == Some(0);
            return Err(if is_own {
                SandboxError::InvalidPolicy { reason }
            } else {
                SandboxError::InvalidDeclaration { reason }
            });
        }
        Ok(limits)
    }
}

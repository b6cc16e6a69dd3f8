//! The results of a turn, as the hooks after its calls see and change them.

use std::borrow::Cow;

use super::*;

impl ToolRun {
    /// The next call that was made, from this place on.
    pub(in crate::machine) fn next_reviewed(&self, from: usize) -> Option<usize> {
        (from..self.slots.len()).find(|index| self.slots[*index].was_started)
    }

    /// The id of the call at this place.
    pub(in crate::machine) fn call_id(&self, index: usize) -> Option<&str> {
        self.slots.get(index).map(|slot| slot.call_id.as_str())
    }

    /// A call that has ended: the name it was called by, what was done, and what came of it.
    pub(in crate::machine) fn reviewed(&self, index: usize) -> Option<(&str, Cow<'_, Action>, &ToolResult)> {
        let slot = self.slots.get(index)?;
        let CallProgress::Done(result) = &slot.progress else { return None };
        let action = match &slot.work.as_ref()?.work {
            ToolWork::Dispatch(action) | ToolWork::Spawn(action, _) | ToolWork::Orchestrate(action) => {
                Cow::Borrowed(action.action())
            }
            ToolWork::ReadArtifact(params) => {
                let fields = json!({"primary": "execute", "item_type": "tool", "item_id": READ_ARTIFACT});
                Cow::Owned(Action { params: params.clone(), ..Action::from_value(&fields).ok()? })
            }
            ToolWork::AwaitAnswer => return None,
        };
        Some((&slot.name, action, result))
    }

    /// The model reads this instead of the result.
    pub(in crate::machine) fn replace_result(
        &mut self,
        index: usize,
        content: String,
        is_error: Option<bool>,
    ) {
        if let Some(CallProgress::Done(result)) = self.slots.get_mut(index).map(|slot| &mut slot.progress) {
            result.content = content;
            result.is_error = is_error.unwrap_or(result.is_error);
        }
    }

    /// The model reads this after the result.
    pub(in crate::machine) fn add_note(&mut self, index: usize, note: String) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.notes.push(note);
        }
    }
}

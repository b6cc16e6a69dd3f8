//! `keys.keys`: which keys count here. It only looks: what a key may vouch for is for a person to say.

use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::verbs::keys;

pub(super) struct KeysTool<'a> {
    pub(super) engine: &'a Engine,
}

impl NativeTool for KeysTool<'_> {
    fn name(&self) -> &'static str {
        "keys.keys"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let action = call.parameters.get("action").and_then(Value::as_str).unwrap_or("list");
        match action {
            "list" => serde_json::to_value(keys::list(self.engine))
                .map_err(|error| NativeError::failed(error.to_string())),
            "info" => Ok(match &self.engine.workspace.own_key {
                Some(key) => json!({
                    "fingerprint": key.fingerprint(),
                    "public_key": key.to_pem(),
                    "is_trusted": self.engine.workspace.keys.is_trusted_everywhere(key),
                }),
                None => json!({"fingerprint": null, "hint": "no key yet: rye init"}),
            }),
            other => {
                let other = rye_item::text::one_line(other);
                Err(NativeError::denied(format!(
                    "`{other}` changes who is trusted: only a person does that, with `rye keys`"
                )))
            }
        }
    }
}

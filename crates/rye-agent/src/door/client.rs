//! The tool's side of a door: what `rye` does when it finds itself in a tool's sandbox. It holds a token, and no rights.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use lillux::process::door::{inherited, knock, unsealed};
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use super::frame::{self, Patience};
use super::token::LONGEST;

/// Somebody at a door.
#[derive(Debug)]
pub struct Visitor {
    token: Vec<u8>,
    door: OwnedFd,
    /// Conversations that nobody uses at the moment: one request after the other goes over each.
    idle: Mutex<Vec<OwnedFd>>,
}

impl Visitor {
    /// With the token and the door that the variables of these values name.
    ///
    /// # Errors
    /// When they name no descriptors of this process.
    pub fn new(token: &str, door: &str) -> Result<Self> {
        let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number > 2);
        let (token, door) =
            number(token).zip(number(door)).ok_or_else(|| gone(&"its variables hold no numbers"))?;
        let token =
            inherited(token).and_then(|memory| unsealed(memory, LONGEST)).map_err(|error| gone(&error))?;
        let door = inherited(door).map_err(|error| gone(&error))?;
        Ok(Self { token, door, idle: Mutex::default() })
    }

    /// Asks for an action, and waits for its answer: what a verb would have answered.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn ask(&self, action: &Value) -> Result<Value> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let socket = match idle {
            Some(socket) => socket,
            None => knock(&self.door, &self.token).map_err(|error| gone(&error))?,
        };
        let asked = frame::send(&socket, &json!({ "action": action }), Patience::ENDLESS);
        let answer = asked.and_then(|()| frame::receive(&socket, Patience::ENDLESS));
        match answer {
            Ok(Some(answer)) => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
                Ok(answer)
            }
            Ok(None) => Err(gone(&io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) => Err(gone(&error)),
        }
    }
}

fn gone(error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::NoToken, format!("the door to the thread cannot be used: {error}"))
        .hint("a program between the tool and `rye` must pass its descriptors on; in Python: subprocess.run([...], close_fds=False)")
}

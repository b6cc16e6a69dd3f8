//! The tool's side of a callback channel: what `rye` does when it finds itself in a tool's sandbox. It holds a token, and no rights.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use lillux::process::callback::{connect, dup_inherited_fd, read_sealed};
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use super::frame::{self, WaitLimit};
use super::token::MAX_TOKEN_BYTES;

/// A client of a callback channel.
#[derive(Debug)]
pub struct CallbackClient {
    token: Vec<u8>,
    channel: OwnedFd,
    /// Idle connections: one request after the other goes over each.
    idle_connections: Mutex<Vec<OwnedFd>>,
}

impl CallbackClient {
    /// With the token and the channel that the variables of these values name.
    ///
    /// # Errors
    /// When they name no descriptors of this process.
    pub fn new(token: &str, channel: &str) -> Result<Self> {
        let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number > 2);
        let (token, channel) = number(token)
            .zip(number(channel))
            .ok_or_else(|| unavailable_error(&"its variables hold no numbers"))?;
        let token = dup_inherited_fd(token)
            .and_then(|memory| read_sealed(memory, MAX_TOKEN_BYTES))
            .map_err(|error| unavailable_error(&error))?;
        let channel = dup_inherited_fd(channel).map_err(|error| unavailable_error(&error))?;
        Ok(Self { token, channel, idle_connections: Mutex::default() })
    }

    /// Asks for an action, and waits for its answer: what a verb would have answered.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn request(&self, action: &Value) -> Result<Value> {
        let idle = self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let socket = match idle {
            Some(socket) => socket,
            None => connect(&self.channel, &self.token).map_err(|error| unavailable_error(&error))?,
        };
        let sent = frame::send(&socket, &json!({ "action": action }), WaitLimit::NONE);
        let response = sent.and_then(|()| frame::receive(&socket, WaitLimit::NONE));
        match response {
            Ok(Some(response)) => {
                self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
                Ok(response)
            }
            Ok(None) => Err(unavailable_error(&io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) => Err(unavailable_error(&error)),
        }
    }
}

fn unavailable_error(error: &dyn std::fmt::Display) -> Error {
    Error::new(Code::NoToken, format!("the callback channel cannot be used: {error}"))
        .hint("a program between the tool and `rye` must pass its descriptors on; in Python: subprocess.run([...], close_fds=False)")
}

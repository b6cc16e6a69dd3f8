//! The machine by itself: each test plays the world.

mod keys;
mod laws;
mod people;
mod rows;
mod world;

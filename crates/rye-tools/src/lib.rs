//! The standard tools compiled into the binary. Each is a function from parameters to a result; descriptors in the
//! bundles give them ids, schemas and signatures.

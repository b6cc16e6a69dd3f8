//! The macro that turns the list of core events into types and schemas.

/// Declares the events: the enum, the conversion to JSON and the schemas. Fields are written in the order they have here.
macro_rules! core_events {
    ($(
        #[doc = $description:literal]
        $variant:ident = $name:literal, $category:literal, $criticality:ident {
            $(#[doc = $field_description:literal] $field:ident: $kind:ty,)*
        }
    )*) => {
        /// An event that only the thread itself writes to its transcript.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "each is turned into JSON where it is made")]
        pub enum CoreEvent {
            $(
                #[doc = $description]
                $variant {
                    $(#[doc = $field_description] $field: $kind,)*
                },
            )*
        }

        impl CoreEvent {
            /// Its name and its payload.
            #[must_use]
            pub fn into_payload(self) -> (&'static str, Value) {
                let mut payload = Map::new();
                let name = match self {
                    $(Self::$variant { $($field,)* } => {
                        $(PayloadField::write_field($field, stringify!($field), &mut payload);)*
                        $name
                    })*
                };
                (name, Value::Object(payload))
            }
        }

        /// The schemas of all core events.
        pub static CORE_EVENTS: &[CoreEventSchema] = &[$(
            CoreEventSchema {
                name: $name,
                category: $category,
                criticality: Criticality::$criticality,
                description: $description,
                fields: &[$(
                    EventField {
                        name: stringify!($field),
                        field_type: <$kind as PayloadField>::FIELD_TYPE,
                        is_required: <$kind as PayloadField>::IS_REQUIRED,
                        may_be_null: <$kind as PayloadField>::MAY_BE_NULL,
                        description: $field_description,
                    },
                )*],
            },
        )*];
    };
}

//! One file per instruction set, named in the table.

macro_rules! files {
    ($($(#[$doc:meta])* $isa:ident = $name:ident over $base:ident, if $cfg:meta, $features:tt $lines:tt)*) => {
        $(mod $name;)*
    };
}
crate::instruction_sets! { files }

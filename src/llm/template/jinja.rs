//! What Jinja brings along: the filters, tests and functions of <https://jinja.palletsprojects.com> that templates of
//! conversations may use. Those of the library alone are not there, nor filters whose results grow without bounds in
//! chains (`batch`, `center`, `pprint`, `slice`, `urlencode`, `wordwrap`), nor what no such template has needed
//! (`groupby`).

use minijinja::value::ValueKind;
use minijinja::{Environment, Value, filters, functions, tests};

macro_rules! add {
    ($environment:ident.$add:ident: $($($name:literal)+ => $function:expr,)*) => {
        $($($environment.$add($name, $function);)+)*
    };
}

/// Teaches an environment to speak Jinja. What [`super::limits`] guards it adds itself.
pub(super) fn install(environment: &mut Environment<'_>) {
    add! { environment.add_filter:
        "abs" => filters::abs,
        "attr" => filters::attr,
        "capitalize" => filters::capitalize,
        "count" "length" => filters::length,
        "d" "default" => filters::default,
        "dictsort" => filters::dictsort,
        "e" "escape" => filters::escape,
        "first" => filters::first,
        "float" => filters::float,
        "int" => filters::int,
        "items" => filters::items,
        "last" => filters::last,
        "list" => filters::list,
        "lower" => filters::lower,
        "map" => filters::map,
        "max" => filters::max,
        "min" => filters::min,
        "reject" => filters::reject,
        "rejectattr" => filters::rejectattr,
        "reverse" => filters::reverse,
        "round" => filters::round,
        "safe" => filters::safe,
        "select" => filters::select,
        "selectattr" => filters::selectattr,
        "sort" => filters::sort,
        "string" => filters::string,
        "sum" => filters::sum,
        "title" => filters::title,
        "trim" => filters::trim,
        "unique" => filters::unique,
        "upper" => filters::upper,
    }
    add! { environment.add_test:
        "!=" "ne" => tests::is_ne,
        "<" "lessthan" "lt" => tests::is_lt,
        "<=" "le" => tests::is_le,
        "==" "eq" "equalto" => tests::is_eq,
        ">" "greaterthan" "gt" => tests::is_gt,
        ">=" "ge" => tests::is_ge,
        "boolean" => tests::is_boolean,
        "callable" => |v: &Value| v.kind() == ValueKind::Plain,
        "defined" => tests::is_defined,
        "divisibleby" => tests::is_divisibleby,
        "even" => tests::is_even,
        "false" => tests::is_false,
        "float" => tests::is_float,
        "in" => tests::is_in,
        "integer" => tests::is_integer,
        // Of nothing nothing can be taken.
        "iterable" => |v: &Value| !v.is_none() && v.try_iter().is_ok(),
        "lower" => tests::is_lower,
        "mapping" => tests::is_mapping,
        "none" => tests::is_none,
        "number" => |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool),
        "odd" => tests::is_odd,
        "sameas" => tests::is_sameas,
        // Whatever has a length and elements under names or numbers.
        "sequence" => |v: &Value| {
            matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
        },
        "string" => tests::is_string,
        "true" => tests::is_true,
        "undefined" => tests::is_undefined,
        "upper" => tests::is_upper,
    }
    add! { environment.add_function:
        "dict" => functions::dict,
        "namespace" => functions::namespace,
        "range" => functions::range,
    }
}

//! What kind of processor this is.

use std::fs;
use std::sync::OnceLock;

/// The processor's name as the system gives it, else its architecture.
pub fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let board = || {
        let model = fs::read_to_string("/proc/device-tree/model").ok()?;
        Some(model.trim_end_matches('\0').to_owned())
    };
    field(&info, "model name").or_else(board).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The processor's name with the numbers of its design, where the system gives them: names alone
/// often cover several designs. This is what tuning tables call a CPU.
pub fn cpu_model() -> &'static str {
    static MODEL: OnceLock<String> = OnceLock::new();
    MODEL.get_or_init(|| {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        // x86, then Arm.
        let keys =
            [["cpu family", "model", "stepping"], ["CPU implementer", "CPU part", "CPU revision"]];
        let numbers = keys.iter().find_map(|keys| {
            let fields: Option<Vec<String>> = keys.iter().map(|key| field(&info, key)).collect();
            fields.map(|f| f.join("/"))
        });
        let name = [Some(cpu_name()), numbers].into_iter().flatten().collect::<Vec<_>>().join(" ");
        // Bars separate the fields of a table, and lines its entries.
        name.split(|c: char| c == '|' || c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    })
}

/// The value of the first line `name : value`.
fn field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name && !value.trim().is_empty()).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_one_field_of_a_table() {
        let model = cpu_model();
        assert!(!model.is_empty() && model.trim() == model);
        assert!(!model.contains(['|', '\n', '\t']));
        assert_eq!(field("a\t: 1\nb : \nb: 2\n", "b"), Some("2".into()));
    }
}

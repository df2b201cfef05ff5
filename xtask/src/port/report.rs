//! A report as text and as JSON.

use core::fmt::Write as _;

use super::Report;

/// For people.
pub(super) fn text(report: &Report) -> String {
    let mut out = format!("{} on {}\n\ncorrectness\n", report.isa, report.machine);
    for (op, (passed, failed)) in &report.tests {
        let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
        let _ = writeln!(out, "  {op:12} {passed:3} tests pass, {} fail  {verdict}", failed.len());
        for name in failed {
            let _ = writeln!(out, "    {name}");
        }
    }
    let _ =
        writeln!(out, "\nkernels\n  {:40} {:>9} {:>9} {:>7}", "", "% of peak", "% of FMA", "stack");
    let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.1}"));
    for kernel in &report.kernels {
        let _ = writeln!(
            out,
            "  {:40} {:>9} {:>9} {:>7}",
            kernel.name,
            number(kernel.share),
            number(kernel.fma_share()),
            kernel.hot.map_or("-".into(), |hot| hot.stack.to_string())
        );
    }
    for reason in report.untimed.iter().chain(&report.unread) {
        let _ = writeln!(out, "  skipped: {reason}");
    }
    out += "\nnext\n";
    for line in &report.advice {
        let _ = writeln!(out, "  {line}");
    }
    if report.advice.is_empty() {
        out += "  nothing that a rule knows\n";
    }
    out
}

/// For programs.
pub(super) fn json(report: &Report) -> String {
    let strings =
        |list: &[String]| list.iter().map(|s| string(s)).collect::<Vec<String>>().join(", ");
    let number = |x: Option<f64>| x.map_or("null".into(), |x| format!("{x:.1}"));
    let reason = |x: &Option<String>| x.as_deref().map_or("null".into(), string);
    let tests = report.tests.iter().map(|(op, (passed, failed))| {
        format!("    {}: {{\"passed\": {passed}, \"failed\": [{}]}}", string(op), strings(failed))
    });
    let kernels = report.kernels.iter().map(|kernel| {
        let stack = kernel.hot.map_or("null".into(), |hot| hot.stack.to_string());
        format!(
            "    {{\"name\": {}, \"peak_percent\": {}, \"fma_percent\": {}, \"stack\": {stack}}}",
            string(&kernel.name),
            number(kernel.share),
            number(kernel.fma_share())
        )
    });
    format!(
        "{{\n  \"isa\": {},\n  \"machine\": {},\n  \"untimed\": {},\n  \"unread\": {},\n  \"tests\": \
         {{\n{}\n  }},\n  \"kernels\": [\n{}\n  ],\n  \"next\": [{}]\n}}\n",
        string(&report.isa),
        string(&report.machine),
        reason(&report.untimed),
        reason(&report.unread),
        tests.collect::<Vec<String>>().join(",\n"),
        kernels.collect::<Vec<String>>().join(",\n"),
        strings(&report.advice)
    )
}

fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn strings_are_escaped() {
        assert_eq!(super::string("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}

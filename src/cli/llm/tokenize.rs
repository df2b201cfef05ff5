//! `tilewright tokenize`: the tokens of a text.

use serde::Serialize;

use super::args::TokenizeArgs;
use super::{read_stdin, vocabulary};
use crate::cli::Failure;
use crate::cli::args::Format;
use crate::cli::report::{self, Table};

#[derive(Serialize)]
struct Json {
    tokens: Vec<u32>,
    /// What each token stands for; bytes that are no whole characters are shown as U+FFFD.
    pieces: Vec<String>,
}

/// The command.
pub(crate) fn tokenize(args: &TokenizeArgs) -> Result<(), Failure> {
    let text = if args.text == "-" { read_stdin()? } else { args.text.clone() };
    let tokenizer = vocabulary(&args.model)?;
    let tokens = if args.no_special {
        tokenizer.encode(&text, false)
    } else {
        tokenizer.encode_whole(&text, true)
    };
    let piece = |id: &u32| String::from_utf8_lossy(tokenizer.piece(*id)).into_owned();
    let pieces: Vec<String> = tokens.iter().map(piece).collect();
    match args.format {
        Format::Json => report::print_json(&Json { tokens, pieces }),
        Format::Text => {
            let mut table = Table::new(&[">token", "text"]);
            for (token, piece) in tokens.iter().zip(&pieces) {
                table.row([token.to_string(), format!("{piece:?}")]);
            }
            report::print(&table.text())
        }
    }
}

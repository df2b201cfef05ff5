//! `include/tilewright.h` is what cbindgen makes of `src/capi`. To write it anew:
//! `TILEWRIGHT_WRITE_HEADER=1 cargo test --test header`.

use std::fs;
use std::path::Path;

/// The files with public items, in the order in which the header has them.
const FILES: [&str; 16] = [
    "c/kernels/src/version.rs",
    "c/kernels/src/status.rs",
    "c/kernels/src/last.rs",
    "c/kernels/src/kernel.rs",
    "c/kernels/src/gemm.rs",
    "c/kernels/src/window.rs",
    "c/kernels/src/qconv.rs",
    "c/kernels/src/layout.rs",
    "c/library/src/allocator.rs",
    "src/capi/log.rs",
    "src/capi/options.rs",
    "src/capi/tensor.rs",
    "src/capi/model.rs",
    "src/capi/session.rs",
    "src/capi/llm.rs",
    "src/capi/llm_text.rs",
];

#[test]
fn the_header_says_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    config.after_includes =
        config.after_includes.map(|text| text.replace("@VERSION@", env!("CARGO_PKG_VERSION")));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(root.join(file));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), root.join("include/tilewright.h"));
    if std::env::var_os("TILEWRIGHT_WRITE_HEADER").is_some() {
        fs::create_dir_all(root.join("include")).unwrap();
        fs::write(&path, &made).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == made,
        "include/tilewright.h is stale: TILEWRIGHT_WRITE_HEADER=1 cargo test --test header"
    );
}

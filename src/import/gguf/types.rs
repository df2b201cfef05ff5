//! Numbers of tensor types.

use crate::tensor::DType;

/// The type of a tensor with this number in a file.
///
/// # Errors
/// What ggml calls it, where it is not supported.
pub fn dtype(number: u32) -> Result<DType, String> {
    let found = match number {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        16 => DType::IQ2_XXS,
        17 => DType::IQ2_XS,
        18 => DType::IQ3_XXS,
        19 => DType::IQ1_S,
        20 => DType::IQ4_NL,
        21 => DType::IQ3_S,
        22 => DType::IQ2_S,
        23 => DType::IQ4_XS,
        24 => DType::I8,
        25 => DType::I16,
        26 => DType::I32,
        27 => DType::I64,
        28 => DType::F64,
        29 => DType::IQ1_M,
        30 => DType::BF16,
        34 => DType::TQ1_0,
        35 => DType::TQ2_0,
        39 => DType::MXFP4,
        41 => DType::Q1_0,
        42 => DType::Q2_0,
        number => return Err(unsupported(number)),
    };
    Ok(found)
}

fn unsupported(number: u32) -> String {
    let name = match number {
        9 => "q8_1",
        15 => "q8_K",
        40 => "nvfp4",
        4 => "q4_2 (no longer part of the format)",
        5 => "q4_3 (no longer part of the format)",
        31 => "q4_0_4_4 (no longer part of the format)",
        32 => "q4_0_4_8 (no longer part of the format)",
        33 => "q4_0_8_8 (no longer part of the format)",
        36 => "iq4_nl_4_4 (no longer part of the format)",
        37 => "iq4_nl_4_8 (no longer part of the format)",
        38 => "iq4_nl_8_8 (no longer part of the format)",
        number => return format!("number {number} (not known)"),
    };
    name.to_owned()
}

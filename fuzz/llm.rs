//! Small files of language models that bytes decide about: mostly right, with a setting, a tensor, a token
//! or a template that is not. What loads is made to tokenize, to write a conversation and to compute.

use arbitrary::{Result, Unstructured};
use tilewright::Error;
use tilewright::llm::tokenizer::{Decoder, Tokenizer};
use tilewright::llm::{ChatTemplate, Llm, LlmOptions, Message};

use super::gguf::{ARRAY, BOOL, F32, File, I32, STRING, U32, array, text, texts};

/// Architectures with the tensors that this makes.
const ARCHITECTURES: [&str; 10] = [
    "llama",
    "mistral3",
    "qwen2",
    "qwen3",
    "gemma",
    "granite",
    "lfm2",
    "qwen35",
    "gpt-oss",
    "deepseek2",
];

/// Ways of cutting text, and one that does not exist.
const CUTS: [&str; 6] = ["default", "llama-bpe", "qwen2", "gpt-2", "smollm", "none"];

/// Parts of templates.
const PARTS: [&str; 16] = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if m.role == 'user' %}",
    "{% else %}",
    "{% endif %}",
    "{{ m['content'] | trim }}",
    "{{ bos_token ~ m.role }}",
    "{% set ns = namespace(x='ab') %}",
    "{% set ns.x = ns.x ~ ns.x + 'c' %}",
    "{% for i in range(99999) %}",
    "{{ ns.x }}",
    "{% macro f(x) %}{{ x }}{{ f(x ~ [x, x]) }}{% endmacro %}{{ f(ns.x) }}",
    "{{ messages | tojson(indent=2) }}",
    "{% set y %}{{ ns }}{% endset %}",
    "{{ y.replace('a', y) | join(y) }}",
    "{{ raise_exception(ns.x * 99999) }}",
];

/// Numbers that settings are wrong with.
const WRONG: [u32; 8] = [0, 1, 3, 33, 4097, 1 << 20, i32::MAX as u32, u32::MAX];

/// A file, and a text for it.
pub(crate) fn model(u: &mut Unstructured<'_>) -> Result<(Vec<u8>, String)> {
    let arch = *u.choose(&ARCHITECTURES)?;
    let layers = u.int_in_range(1..=2)?;
    let [width, heads, kv_heads, hidden] = [32u32, 2, u.int_in_range(1..=2)?, 32];
    let mut settings = vec![
        ("block_count", layers),
        ("embedding_length", width),
        ("feed_forward_length", hidden),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("context_length", 16),
        ("rope.dimension_count", 16),
        ("attention.sliding_window", u.int_in_range(0..=4)?),
        ("shortconv.l_cache", 3),
    ];
    // Of Qwen 3.5, every second layer remembers in matrices.
    if arch == "qwen35" {
        settings.extend([
            ("full_attention_interval", 2),
            ("nextn_predict_layers", u.int_in_range(0..=1)?),
            ("ssm.conv_kernel", 3),
            ("ssm.state_size", 8),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 2),
            ("ssm.inner_size", 16),
        ]);
    }
    let has_experts = matches!(arch, "gpt-oss" | "deepseek2");
    if has_experts {
        settings.extend([
            ("expert_count", 4),
            ("expert_used_count", u.int_in_range(1..=2)?),
            ("expert_feed_forward_length", hidden),
        ]);
    }
    // Keys and values of two heads come from one vector of 16, of a head's 24 elements 8 turn.
    if arch == "deepseek2" {
        settings.retain(|(name, _)| {
            !matches!(*name, "attention.head_count_kv" | "rope.dimension_count")
        });
        settings.extend([
            ("expert_group_count", 2),
            ("expert_group_used_count", u.int_in_range(1..=2)?),
            ("attention.head_count_kv", 1),
            ("rope.dimension_count", 8),
            ("attention.kv_lora_rank", 16),
            ("attention.key_length", 24),
            ("attention.value_length", 16),
            ("attention.key_length_mla", 24),
            ("attention.value_length_mla", 16),
        ]);
    }
    if u.ratio(1, 4)? {
        let at = u.choose_index(settings.len())?;
        settings[at].1 = *u.choose(&WRONG)?;
    }
    let mut file = File::new().with("general.architecture", STRING, text(arch));
    // Of LFM2, some layers convolve; which is in a list.
    let convolves = match arch == "lfm2" {
        true => (0..layers).map(|_| u.arbitrary()).collect::<Result<_>>()?,
        false => vec![false; layers as usize],
    };
    if arch == "lfm2" {
        settings.retain(|(name, _)| *name != "attention.head_count_kv");
        let of_layer = |&convolves: &bool| if convolves { 0 } else { kv_heads };
        let list: Vec<u8> = convolves.iter().flat_map(|c| of_layer(c).to_le_bytes()).collect();
        let list = array(U32, layers.into(), &list);
        file = file.with("lfm2.attention.head_count_kv", ARRAY, list);
    }
    for (name, value) in settings {
        file = file.with(&format!("{arch}.{name}"), U32, value.to_le_bytes());
    }
    if arch == "granite" {
        for name in ["embedding_scale", "residual_scale", "logit_scale"] {
            let scale = if u.ratio(1, 8)? { u.arbitrary()? } else { 1.5f32 };
            file = file.with(&format!("granite.{name}"), F32, scale.to_le_bytes());
        }
    }
    let epsilon = if u.ratio(1, 16)? { u.arbitrary()? } else { 1e-5f32 };
    file =
        file.with(&format!("{arch}.attention.layer_norm_rms_epsilon"), F32, epsilon.to_le_bytes());
    let (mut file, tokens) = vocabulary(u, file)?;
    if u.ratio(1, 2)? {
        let mut source = String::new();
        for _ in 0..u.int_in_range(1..=6)? {
            source += u.choose(&PARTS)?;
            source += u.arbitrary::<&str>()?;
        }
        file = file.with("tokenizer.chat_template", STRING, text(source));
    }
    let kv = u64::from(width / heads * kv_heads);
    let [wide, deep, rows] = [u64::from(width), u64::from(hidden), tokens as u64];
    matrix(u, &mut file, "token_embd.weight", &[wide, rows])?;
    let last = if arch == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
    matrix(u, &mut file, last, &[wide])?;
    for (i, convolves) in convolves.into_iter().enumerate() {
        let remembers = arch == "qwen35" && i % 2 == 0;
        let queries = if arch == "qwen35" { 2 * wide } else { wide };
        let behind = matches!(arch, "qwen35" | "gpt-oss");
        let common: [(&str, &[u64]); 2] = [
            ("attn_norm", &[wide]),
            (if behind { "post_attention_norm" } else { "ffn_norm" }, &[wide]),
        ];
        let network: [(&str, &[u64]); 3] =
            [("ffn_gate", &[wide, deep]), ("ffn_up", &[wide, deep]), ("ffn_down", &[deep, wide])];
        let experts: [(&str, &[u64]); 4] = [
            ("ffn_gate_inp", &[wide, 4]),
            ("ffn_gate_exps", &[wide, deep, 4]),
            ("ffn_up_exps", &[wide, deep, 4]),
            ("ffn_down_exps", &[deep, wide, 4]),
        ];
        let feeding = if has_experts { &experts[..] } else { &network };
        let attention: [(&str, &[u64]); 4] = [
            ("attn_q", &[wide, queries]),
            ("attn_k", &[wide, kv]),
            ("attn_v", &[wide, kv]),
            ("attn_output", &[wide, wide]),
        ];
        let convolution: [(&str, &[u64]); 3] = [
            ("shortconv.in_proj", &[wide, 3 * wide]),
            ("shortconv.conv", &[3, wide]),
            ("shortconv.out_proj", &[wide, wide]),
        ];
        // Two heads of values and one of keys, of 8 elements.
        let memory: [(&str, &[u64]); 7] = [
            ("attn_qkv", &[wide, 32]),
            ("attn_gate", &[wide, 16]),
            ("ssm_conv1d", &[3, 32]),
            ("ssm_beta", &[wide, 2]),
            ("ssm_alpha", &[wide, 2]),
            ("ssm_out", &[16, wide]),
            ("ssm_norm", &[8]),
        ];
        let latent: [(&str, &[u64]); 6] = [
            ("attn_q", &[wide, 48]),
            ("attn_kv_a_mqa", &[wide, 24]),
            ("attn_kv_a_norm", &[16]),
            ("attn_k_b", &[16, 16, 2]),
            ("attn_v_b", &[16, 16, 2]),
            ("attn_output", &[32, wide]),
        ];
        let mixing = match (convolves, remembers) {
            (true, _) => &convolution[..],
            (_, true) => &memory,
            _ if arch == "deepseek2" => &latent,
            _ => &attention,
        };
        for &(name, dims) in common.iter().chain(feeding).chain(mixing) {
            matrix(u, &mut file, &format!("blk.{i}.{name}.weight"), dims)?;
        }
        if remembers {
            matrix(u, &mut file, &format!("blk.{i}.ssm_dt.bias"), &[2])?;
            matrix(u, &mut file, &format!("blk.{i}.ssm_a"), &[2])?;
        }
        if convolves || remembers {
            continue;
        }
        if arch == "gpt-oss" {
            matrix(u, &mut file, &format!("blk.{i}.attn_sinks.weight"), &[2])?;
            matrix(u, &mut file, &format!("blk.{i}.ffn_up_exps.bias"), &[deep, 4])?;
        }
        for (name, size) in [("attn_q", wide), ("attn_k", kv), ("attn_v", kv)] {
            match arch {
                "qwen2" => matrix(u, &mut file, &format!("blk.{i}.{name}.bias"), &[size])?,
                "qwen3" | "lfm2" | "qwen35" if name != "attn_v" => {
                    matrix(u, &mut file, &format!("blk.{i}.{name}_norm.weight"), &[16])?;
                }
                _ => {}
            }
        }
    }
    Ok((file.bytes(), u.arbitrary::<&str>()?.to_owned()))
}

/// A vocabulary of bytes, of words that bytes decide about, and of tokens that steer; gives how many there are.
fn vocabulary(u: &mut Unstructured<'_>, file: File) -> Result<(File, usize)> {
    let kind = *u.choose(&["llama", "gpt2", "t5", "bert"])?;
    let mut tokens: Vec<Vec<u8>> = vec![b"<unk>".into(), b"<s>".into(), b"</s>".into()];
    let mut types = vec![2i32, 3, 3];
    if kind == "llama" && u.ratio(7, 8)? {
        tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
        types.resize(tokens.len(), 6);
    } else {
        tokens.extend((b'!'..=b'~').map(|c| vec![c]));
        types.resize(tokens.len(), 1);
    }
    for _ in 0..u.int_in_range(0..=12)? {
        let len = u.int_in_range(1..=4)?;
        tokens.push(u.bytes(len)?.to_vec());
        types.push(if u.ratio(1, 32)? { *u.choose(&[-1, 6, 7])? } else { u.int_in_range(1..=5)? });
    }
    let count = tokens.len();
    let scores: Vec<u8> = (0..count).flat_map(|i| (-(i as f32)).to_le_bytes()).collect();
    let kinds: Vec<u8> = types.iter().flat_map(|t| t.to_le_bytes()).collect();
    let merges: Vec<&[u8]> = vec![b"a b", b"ab c", b"t h", u.bytes(3)?];
    let mut file = file
        .with("tokenizer.ggml.model", STRING, text(kind))
        .with("tokenizer.ggml.pre", STRING, text(u.choose(&CUTS)?))
        .with("tokenizer.ggml.tokens", ARRAY, texts(&tokens))
        .with("tokenizer.ggml.scores", ARRAY, array(F32, count as u64, &scores))
        .with("tokenizer.ggml.token_type", ARRAY, array(I32, count as u64, &kinds))
        .with("tokenizer.ggml.merges", ARRAY, texts(merges))
        .with("tokenizer.ggml.add_bos_token", BOOL, [u8::from(u.arbitrary::<bool>()?)]);
    for name in ["bos", "eos", "unknown"] {
        let id = if u.ratio(1, 32)? { *u.choose(&WRONG)? } else { u.int_in_range(0..=2)? };
        file = file.with(&format!("tokenizer.ggml.{name}_token_id"), U32, id.to_le_bytes());
    }
    Ok((file, count))
}

/// A tensor of floats, rarely of other extents, another type or other values.
fn matrix(u: &mut Unstructured<'_>, file: &mut File, name: &str, dims: &[u64]) -> Result<()> {
    let mut dims = dims.to_vec();
    let fault = u.int_in_range(0..=511)?;
    match fault {
        1 => dims[0] = 64,
        2 => dims.push(2),
        3 => return Ok(()),
        _ => {}
    }
    let value = if fault == 4 { u.arbitrary::<f32>()? } else { 0.1 };
    let count = dims.iter().product::<u64>() as usize;
    // Blocks of 32 bytes behind a scale, or floats.
    let blocks = dims.len() > 1 && dims[0].is_multiple_of(32);
    let (kind, data) = if blocks && u.arbitrary::<bool>()? {
        let scale = if fault == 4 { u.arbitrary::<[u8; 2]>()? } else { [0, 0x1c] };
        (8, [&scale[..], &[3; 32]].concat().repeat(count / 32))
    } else {
        (0, value.to_le_bytes().repeat(count))
    };
    *file = core::mem::replace(file, File::new()).tensor(name, kind, &dims, &data);
    Ok(())
}

/// Loads a model and uses it; gives whether it was whole.
pub(crate) fn try_out(bytes: Vec<u8>, said: &str) -> bool {
    let short = |e: &dyn core::fmt::Display| {
        let message = e.to_string();
        assert!(message.len() < 4096, "a long message: {message}");
        false
    };
    let options =
        LlmOptions { threads: Some(1), memory_limit: Some(64 << 20), ..Default::default() };
    let llm = match Llm::from_bytes(bytes, options) {
        Ok(llm) => llm,
        Err(e) => return short(&e),
    };
    let tokenizer = match llm.tokenizer() {
        Ok(tokenizer) => tokenizer,
        Err(e) => return short(&e),
    };
    let text = match ChatTemplate::from_gguf(llm.metadata(), &tokenizer)
        .and_then(|template| template.render(&[Message::new("user", tokenizer.shield(said))]))
    {
        Ok(text) => text,
        Err(e) => return short(&e),
    };
    let tokens = tokenize(&tokenizer, &text[..text.floor_char_boundary(4096)]);
    let computed = llm.session().and_then(|mut session| {
        let tokens = &tokens[..tokens.len().min(session.context())];
        session.eval(tokens).map(<[f32]>::len)
    });
    match computed {
        Ok(count) => count == llm.config().vocabulary,
        Err(e @ (Error::Llm(_) | Error::Graph(_) | Error::Kernel(_) | Error::Tensor(_))) => {
            short(&e)
        }
        Err(e) => panic!("{e}"),
    }
}

/// The tokens of a text, which are in the vocabulary and make text again.
fn tokenize(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let tokens = tokenizer.encode_whole(text, true);
    let mut decoder = Decoder::new();
    for id in &tokens {
        assert!((*id as usize) < tokenizer.len(), "token {id} of {text:?}");
        let _ = decoder.push(tokenizer, *id);
    }
    let _ = decoder.finish();
    tokens
}

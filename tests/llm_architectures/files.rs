//! Small files of random weights.

#[path = "../../fuzz/gguf_file.rs"]
mod gguf;

use gguf::{ARRAY, F32, File, I32, STRING, U32, array, text, texts};

/// Type of a value in the metadata.
pub(super) const BOOL: u32 = 7;
pub(super) const WIDTH: usize = 32;
pub(super) const HEAD: usize = 8;
pub(super) const HIDDEN: usize = 48;
/// Elements inside an expert.
pub(super) const EXPERT: usize = 20;
/// Elements of the vector that keys and values come from, and of a head's keys those that turn.
pub(super) const LATENT: usize = 16;
pub(super) const TURNING: usize = 4;
/// Elements of the values of Mamba-2.
pub(super) const INNER: usize = 24;
pub(super) const VOCABULARY: usize = 40;

/// What a file has beside, or in place of, what Llama's have.
#[derive(Default)]
pub(super) struct Parts {
    /// Heads of keys and values of each layer.
    pub(super) kv_heads: [u32; 3],
    /// Whether it is written as a list.
    pub(super) list: bool,
    /// Vectors of each layer that attends: name and length.
    pub(super) attending: &'static [(&'static str, usize)],
    /// Vectors of each layer.
    pub(super) vectors: &'static [(&'static str, usize)],
    /// Which layers remember in matrices, of a model whose queries have gates, if it is not one of Mamba-2.
    pub(super) remembering: &'static [bool],
    /// Whether they do so by the rule of Mamba-2, those beside attention that have heads for it.
    pub(super) mamba: bool,
    /// Which layers have a window; heads of the others are twice as large. The last layer has neither keys nor values.
    pub(super) windowed: &'static [bool],
    /// Which layers do nothing but feed forward, of a model whose layers do one thing each.
    pub(super) feeding: &'static [bool],
    /// Whether keys and values come from one vector of `LATENT` elements per token.
    pub(super) latent: bool,
    /// How many experts layers have behind the first one.
    pub(super) experts: usize,
    /// Whether the feed-forward network has no gate.
    pub(super) plain: bool,
    /// Whether positions have vectors.
    pub(super) placed: bool,
    /// Elements of the vectors that tokens have for each layer.
    pub(super) layer_embedding: usize,
    /// Streams of vectors, of a model whose layers all have heads of one size.
    pub(super) streams: usize,
    /// Name of the last norm.
    pub(super) last: &'static str,
    /// More metadata.
    pub(super) numbers: &'static [(&'static str, f32)],
    pub(super) counts: &'static [(&'static str, u32)],
}

pub(super) fn model(arch: &str, parts: &Parts) -> Vec<u8> {
    let layers = parts.kv_heads.len();
    let mut file = File::new().with("general.architecture", STRING, text(arch));
    let counts = [
        ("block_count", layers as u32),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", HIDDEN as u32),
        ("attention.head_count", (WIDTH / HEAD) as u32),
        ("context_length", 1024),
    ];
    let replaced = |name: &str, from: &[(&str, u32)]| from.iter().any(|(other, _)| *other == name);
    let counts: Vec<_> = counts.iter().chain(parts.counts).copied().collect();
    for (i, &(name, value)) in counts.iter().enumerate() {
        let listed = name == "feed_forward_length" && !parts.feeding.is_empty();
        if listed || replaced(name, &counts[i + 1..]) {
            continue;
        }
        file = file.with(&format!("{arch}.{name}"), U32, value.to_le_bytes());
    }
    for (name, value) in [("attention.layer_norm_rms_epsilon", 1e-5)].iter().chain(parts.numbers) {
        file = file.with(&format!("{arch}.{name}"), F32, value.to_le_bytes());
    }
    let key = format!("{arch}.attention.head_count_kv");
    file = if parts.list {
        let bytes: Vec<u8> = parts.kv_heads.iter().flat_map(|n| n.to_le_bytes()).collect();
        file.with(&key, ARRAY, array(I32, layers as u64, &bytes))
    } else {
        file.with(&key, U32, parts.kv_heads[0].to_le_bytes())
    };
    if !parts.feeding.is_empty() {
        let size = |&feeds: &bool| (if feeds { HIDDEN as u32 } else { 0 }).to_le_bytes();
        let bytes: Vec<u8> = parts.feeding.iter().flat_map(size).collect();
        let key = format!("{arch}.feed_forward_length");
        file = file.with(&key, ARRAY, array(I32, layers as u64, &bytes));
    }
    if !parts.windowed.is_empty() {
        let key = format!("{arch}.attention.sliding_window_pattern");
        let bytes: Vec<u8> = parts.windowed.iter().map(|&windowed| u8::from(windowed)).collect();
        file = file.with(&key, ARRAY, array(BOOL, layers as u64, &bytes));
    }
    let tokens: Vec<String> = (0..VOCABULARY).map(|i| format!("t{i}")).collect();
    file = file.with("tokenizer.ggml.model", STRING, text("llama")).with(
        "tokenizer.ggml.tokens",
        ARRAY,
        texts(&tokens),
    );
    let mut seed = 7u32;
    let mut tensor = |file: File, name: &str, dims: &[usize], around: f32| {
        let mut draw = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            around + ((seed >> 8) as f32 / (1 << 23) as f32 - 1.0) * 0.3
        };
        let count = dims.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|_| draw().to_le_bytes()).collect();
        let dims: Vec<u64> = dims.iter().rev().map(|&d| d as u64).collect();
        file.tensor(name, 0, &dims, &bytes)
    };
    file = tensor(file, "token_embd.weight", &[VOCABULARY, WIDTH], 0.0);
    file = tensor(file, &format!("{}.weight", parts.last), &[WIDTH], 1.0);
    if parts.placed {
        file = tensor(file, "position_embd.weight", &[1024, WIDTH], 0.0);
    }
    if parts.layer_embedding > 0 {
        let all = parts.layer_embedding * layers;
        file = tensor(file, "per_layer_token_embd.weight", &[VOCABULARY, all], 0.0);
        file = tensor(file, "per_layer_model_proj.weight", &[all, WIDTH], 0.0);
        file = tensor(file, "per_layer_proj_norm.weight", &[parts.layer_embedding], 1.0);
    }
    let streams = parts.streams;
    if streams > 0 {
        for name in ["altup_proj.weight", "altup_unembd_proj.weight"] {
            file = tensor(file, name, &[streams - 1, WIDTH, WIDTH], 0.0);
        }
    }
    for (layer, &kv_heads) in parts.kv_heads.iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let far = parts.windowed.get(layer) == Some(&false);
        let larger = if far && streams == 0 { 2 } else { 1 };
        let (kv, q) = (kv_heads as usize * HEAD * larger, WIDTH * larger);
        let shares = !parts.windowed.is_empty() && layer + 1 == layers;
        let remembers = parts.remembering.get(layer).copied();
        let attention = [
            ("attn_q", if remembers.is_some() && !parts.mamba { 2 * WIDTH } else { q }, WIDTH),
            ("attn_k", kv, WIDTH),
            ("attn_v", kv, WIDTH),
            ("attn_output", WIDTH, q),
        ];
        let [queries, keys, _, output] = attention;
        let (shared, keys_only) = ([queries, output], [queries, keys, output]);
        let convolution = [
            ("shortconv.in_proj", 3 * WIDTH, WIDTH),
            ("shortconv.conv", WIDTH, 3),
            ("shortconv.out_proj", WIDTH, WIDTH),
        ];
        // Four heads of values and two of keys.
        let memory = [
            ("attn_qkv", 8 * HEAD, WIDTH),
            ("attn_gate", 4 * HEAD, WIDTH),
            ("ssm_conv1d", 8 * HEAD, 4),
            ("ssm_beta", 4, WIDTH),
            ("ssm_alpha", 4, WIDTH),
            ("ssm_out", WIDTH, 4 * HEAD),
        ];
        let mamba = [
            ("ssm_in", 2 * INNER + 4 * HEAD + 4, WIDTH),
            ("ssm_conv1d", INNER + 4 * HEAD, 4),
            ("ssm_out", WIDTH, INNER),
        ];
        let both = [&mamba[..], &attention].concat();
        let heads = WIDTH / HEAD;
        let latent = [
            ("attn_q", heads * (HEAD + TURNING), WIDTH),
            ("attn_kv_a_mqa", LATENT + TURNING, WIDTH),
            ("attn_output", WIDTH, WIDTH),
        ];
        let feeds = parts.feeding.get(layer).copied();
        let mixing: &[_] = match (kv, remembers) {
            _ if feeds == Some(true) => &[],
            _ if parts.latent => &latent,
            (0, Some(true)) if parts.mamba => &mamba,
            (_, Some(true)) if parts.mamba => &both,
            (_, Some(true)) => &memory,
            (0, _) => &convolution,
            // What the last layer does not read, it has.
            _ if streams > 0 => &attention,
            _ if shares => &shared,
            _ if far => &keys_only,
            _ => &attention,
        };
        let n = parts.layer_embedding;
        let inputs = [("inp_gate", n, WIDTH), ("proj", WIDTH, n)];
        let inputs = if n > 0 { &inputs[..] } else { &[] };
        let of_streams = [
            ("altup_router", streams, WIDTH),
            ("altup_predict_coef", streams * streams, streams),
            ("altup_correct_coef", streams, streams),
            ("laurel_l", 5, WIDTH),
            ("laurel_r", WIDTH, 5),
        ];
        let of_streams = if streams > 0 { &of_streams[..] } else { &[] };
        let network =
            [("ffn_gate", HIDDEN, WIDTH), ("ffn_up", HIDDEN, WIDTH), ("ffn_down", WIDTH, HIDDEN)];
        let router = [("ffn_gate_inp", parts.experts, WIDTH)];
        let has_experts = parts.experts > 0 && layer > 0;
        let network = match has_experts {
            _ if feeds == Some(false) => &[],
            true => &router[..],
            false => &network[usize::from(parts.plain)..],
        };
        let matrices = mixing.iter().chain(network).chain(inputs).chain(of_streams);
        for &(part, rows, columns) in matrices {
            file = tensor(file, &name(part), &[rows, columns], 0.0);
        }
        if parts.latent {
            file = tensor(file, &name("attn_k_b"), &[heads, LATENT, HEAD], 0.0);
            file = tensor(file, &name("attn_v_b"), &[heads, HEAD, LATENT], 0.0);
        }
        if has_experts {
            let n = parts.experts;
            for (part, rows, columns) in
                [("gate", EXPERT, WIDTH), ("up", EXPERT, WIDTH), ("down", WIDTH, EXPERT)]
            {
                let name = name(&format!("ffn_{part}_exps"));
                file = tensor(file, &name, &[n, rows, columns], 0.0);
            }
        }
        let own = match (kv, remembers) {
            (0, _) | (_, Some(true)) => &[],
            _ => parts.attending,
        };
        for (part, n) in own.iter().chain(parts.vectors) {
            if streams > 0 || !(shares && *part == "attn_k_norm") {
                let larger = if part.contains("_norm") && *n == HEAD { larger } else { 1 };
                file = tensor(file, &name(part), &[*n * larger], 1.0);
            }
        }
        let of_mamba: [(&str, &[usize], f32); 6] = [
            ("ssm_conv1d.bias", &[INNER + 4 * HEAD], 0.0),
            ("ssm_dt.bias", &[4], 0.0),
            ("ssm_a", &[4, 1], -0.5),
            ("ssm_d", &[4, 1], 1.0),
            ("ssm_norm.weight", &[2, INNER / 2], 1.0),
            // Of layers that attend as well.
            ("ffn_norm", &[WIDTH], 1.0),
        ];
        let bare: &[(&str, &[usize], f32)] = match (remembers, parts.mamba) {
            (Some(true), true) => &of_mamba[..if kv == 0 { 5 } else { 6 }],
            (Some(true), false) => &[
                ("ssm_norm.weight", &[HEAD], 1.0),
                ("ssm_dt.bias", &[4], 0.0),
                ("ssm_a", &[4], -0.5),
            ],
            _ => &[],
        };
        for &(part, dims, around) in bare {
            file = tensor(file, &format!("blk.{layer}.{part}"), dims, around);
        }
    }
    file.bytes()
}

pub(super) const NORMS: &[(&str, usize)] = &[("attn_norm", WIDTH), ("ffn_norm", WIDTH)];
pub(super) const BEHIND: &[(&str, usize)] =
    &[("post_attention_norm", WIDTH), ("post_ffw_norm", WIDTH)];
pub(super) const GLM4: &[(&str, usize)] = &[
    ("attn_norm", WIDTH),
    ("ffn_norm", WIDTH),
    ("post_attention_norm", WIDTH),
    ("post_ffw_norm", WIDTH),
];
pub(super) const SEED_OSS: &[(&str, usize)] =
    &[("attn_norm", WIDTH), ("post_attention_norm", WIDTH)];
pub(super) const OF_HEADS: &[(&str, usize)] = &[("attn_q_norm", HEAD), ("attn_k_norm", HEAD)];

pub(super) const LLAMA: Parts = Parts {
    kv_heads: [2; 3],
    list: false,
    attending: &[],
    vectors: NORMS,
    remembering: &[],
    mamba: false,
    windowed: &[],
    feeding: &[],
    latent: false,
    experts: 0,
    plain: false,
    placed: false,
    layer_embedding: 0,
    streams: 0,
    last: "output_norm",
    numbers: &[],
    counts: &[],
};
pub(super) const LFM2: Parts = Parts {
    counts: &[("shortconv.l_cache", 3)],
    kv_heads: [0, 2, 0],
    list: true,
    attending: OF_HEADS,
    last: "token_embd_norm",
    ..LLAMA
};
pub(super) const QWEN35: Parts = Parts {
    counts: &[
        ("ssm.state_size", HEAD as u32),
        ("ssm.inner_size", 4 * HEAD as u32),
        ("ssm.time_step_rank", 4),
        ("ssm.group_count", 2),
        ("ssm.conv_kernel", 4),
        ("full_attention_interval", 2),
    ],
    remembering: &[true, false, true],
    attending: OF_HEADS,
    vectors: SEED_OSS,
    ..LLAMA
};
/// Sizes of Mamba-2, and that nothing attends.
const MAMBA: &[(&str, u32)] = &[
    ("ssm.state_size", HEAD as u32),
    ("ssm.inner_size", INNER as u32),
    ("ssm.time_step_rank", 4),
    ("ssm.group_count", 2),
    ("ssm.conv_kernel", 4),
    ("attention.head_count", 0),
];
pub(super) const GRANITEHYBRID: Parts = Parts {
    counts: MAMBA.split_at(5).0,
    kv_heads: [0, 2, 0],
    list: true,
    remembering: &[true, false, true],
    mamba: true,
    ..LLAMA
};
pub(super) const FALCON_H1: Parts = Parts {
    kv_heads: [2; 3],
    list: false,
    remembering: &[true; 3],
    vectors: &[("attn_norm", WIDTH)],
    ..GRANITEHYBRID
};
pub(super) const GEMMA4: Parts = Parts {
    counts: &[
        ("attention.sliding_window", 4),
        ("attention.key_length", 2 * HEAD as u32),
        ("attention.value_length", 2 * HEAD as u32),
        ("attention.key_length_swa", HEAD as u32),
        ("attention.value_length_swa", HEAD as u32),
        ("attention.shared_kv_layers", 1),
        ("embedding_length_per_layer_input", 6),
    ],
    kv_heads: [2, 1, 2],
    list: true,
    windowed: &[true, false, true],
    layer_embedding: 6,
    attending: OF_HEADS,
    vectors: &[
        ("attn_norm", WIDTH),
        ("ffn_norm", WIDTH),
        ("post_attention_norm", WIDTH),
        ("post_ffw_norm", WIDTH),
        ("post_norm", WIDTH),
        ("layer_output_scale", 1),
    ],
    ..LLAMA
};
pub(super) const GEMMA3N: Parts = Parts {
    counts: &[
        ("attention.sliding_window", 4),
        ("attention.shared_kv_layers", 1),
        ("embedding_length_per_layer_input", 6),
        ("altup.num_inputs", 3),
    ],
    list: true,
    windowed: &[true, false, true],
    layer_embedding: 6,
    streams: 3,
    attending: OF_HEADS,
    vectors: &[
        ("attn_norm", WIDTH),
        ("ffn_norm", WIDTH),
        ("post_attention_norm", WIDTH),
        ("post_ffw_norm", WIDTH),
        ("post_norm", WIDTH),
        ("laurel_post_norm", WIDTH),
        ("altup_router_norm", WIDTH),
        ("altup_correct_scale", WIDTH),
    ],
    ..LLAMA
};
pub(super) const QWEN3MOE: Parts = Parts {
    counts: &[
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", EXPERT as u32),
    ],
    experts: 5,
    attending: OF_HEADS,
    ..LLAMA
};
pub(super) const SMALLTHINKER: Parts = Parts {
    counts: &[
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", EXPERT as u32),
        ("attention.sliding_window", 4),
        ("attention.sliding_window_pattern", 2),
    ],
    attending: &[],
    ..QWEN3MOE
};
pub(super) const NEMOTRON_H: Parts = Parts {
    kv_heads: [0, 2, 0],
    remembering: &[true, false, false],
    feeding: &[false, false, true],
    plain: true,
    vectors: &[("attn_norm", WIDTH)],
    ..GRANITEHYBRID
};
pub(super) const MAMBA2: Parts = Parts {
    counts: MAMBA,
    kv_heads: [0; 3],
    remembering: &[true; 3],
    feeding: &[false; 3],
    ..NEMOTRON_H
};
pub(super) const DEEPSEEK2: Parts = Parts {
    counts: &[
        ("rope.dimension_count", TURNING as u32),
        ("attention.kv_lora_rank", LATENT as u32),
        ("attention.key_length", (LATENT + TURNING) as u32),
        ("attention.value_length", LATENT as u32),
        ("attention.key_length_mla", (HEAD + TURNING) as u32),
        ("attention.value_length_mla", HEAD as u32),
    ],
    kv_heads: [1; 3],
    latent: true,
    attending: &[("attn_kv_a_norm", LATENT)],
    ..LLAMA
};
pub(super) const GPT_OSS: Parts = Parts {
    counts: &[
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", EXPERT as u32),
        ("attention.sliding_window", 4),
    ],
    attending: &[("attn_sinks", WIDTH / HEAD)],
    vectors: SEED_OSS,
    ..QWEN3MOE
};
pub(super) const OLMO2: Parts = Parts {
    attending: &[("attn_q_norm", WIDTH), ("attn_k_norm", 2 * HEAD)],
    vectors: BEHIND,
    ..LLAMA
};

"""Logits of the architectures in f64, written from their descriptions; shares no code with any engine."""

import math

import numpy

from architectures import DELTA, HEAD, HIDDEN, VALUE, frequency_factors


def _rms(x, weight, epsilon):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def _layer_norm(x, weight, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight + bias


def _silu(x):
    return x / (1 + numpy.exp(-x))


def _gelu(x):
    return 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _rotated(a, windowed):
    return a.rotated if windowed or not a.far_head else a.far_head


def _angles(a, positions, windowed, context):
    """Angles [positions, rotated / 2] and the factor on their cosines and sines."""
    base = a.window_base if windowed and a.window_base else a.base
    rotated = _rotated(a, windowed)
    half = rotated // 2
    frequency = base ** (-2 * numpy.arange(half) / rotated)
    magnitude = 1.0
    if windowed and (a.plain_window or a.far_head):
        pass
    elif a.factors in ("llama3", "half"):
        frequency = frequency / frequency_factors(a)
    elif a.factors == "phi3":
        magnitude = a.attention_factor
        if context > a.original:
            frequency = frequency / frequency_factors(a)
    elif a.scaling == "linear":
        frequency = frequency / a.factor
    elif a.scaling == "yarn":
        def turns(count):
            return a.rotated * math.log(a.original / (count * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(0, math.floor(turns(32))), min(a.rotated - 1, math.ceil(turns(1)))
        kept = 1 - numpy.clip((numpy.arange(half) - low) / max(0.001, high - low), 0, 1)
        frequency = frequency / a.factor * (1 - kept) + frequency * kept
        magnitude = (1 + 0.1 * math.log(a.factor)) / (1 + 0.1 * a.log_multiplier * math.log(a.factor))
        if a.latent and a.log_multiplier:
            magnitude = 1.0
    return positions[:, None] * frequency, magnitude


def _rotate(a, x, angles, magnitude):
    """Rotary positions on x [tokens, heads, size]."""
    rotated = 2 * angles.shape[-1]
    cos, sin = magnitude * numpy.cos(angles)[:, None], magnitude * numpy.sin(angles)[:, None]
    half, out = rotated // 2, x.copy()
    first, second = (
        (slice(0, rotated, 2), slice(1, rotated, 2)) if a.neighbours else (slice(0, half), slice(half, rotated))
    )
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def _cap(x, limit):
    return limit * numpy.tanh(x / limit) if limit else x


def _latent(a, w, b, x, context):
    """Multi-head latent attention: keys and values of all heads are made of one vector per token."""
    tokens, rank = len(x), a.latent
    if a.latent_queries:
        q = _rms(x @ w[b + "attn_q_a.weight"].T, w[b + "attn_q_a_norm.weight"], a.epsilon) @ w[b + "attn_q_b.weight"].T
    else:
        q = x @ w[b + "attn_q.weight"].T
    q = q.reshape(tokens, a.heads, HEAD + a.rotated)
    both = x @ w[b + "attn_kv_a_mqa.weight"].T
    short, k_turned = _rms(both[:, :rank], w[b + "attn_kv_a_norm.weight"], a.epsilon), both[:, None, rank:]
    angles, magnitude = _angles(a, numpy.arange(tokens, dtype=float), False, context)
    q_turned, k_turned = _rotate(a, q[..., HEAD:], angles, magnitude), _rotate(a, k_turned, angles, magnitude)
    if a.decompressed:
        k, v = numpy.split((short @ w[b + "attn_kv_b.weight"].T).reshape(tokens, a.heads, 2 * HEAD), 2, -1)
    else:
        k = numpy.einsum("tr,hrk->thk", short, w[b + "attn_k_b.weight"])
        v = numpy.einsum("tr,hvr->thv", short, w[b + "attn_v_b.weight"])
    scores = numpy.einsum("qhd,khd->hqk", q[..., :HEAD], k) + numpy.einsum("qhd,kd->hqk", q_turned, k_turned[:, 0])
    # The factor of YaRN's scores: files have a tenth of the multiplier.
    grown = 1 + 0.1 * (10 * a.log_multiplier or 1) * math.log(a.factor) if a.scaling == "yarn" else 1
    scores = scores * grown**2 / math.sqrt(HEAD + a.rotated)
    scores = numpy.where(numpy.arange(tokens)[:, None] < numpy.arange(tokens), -numpy.inf, scores)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    mixed = numpy.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(tokens, -1) @ w[b + "attn_output.weight"].T


def _attention(a, w, b, x, layer, context, kept):
    """What a layer attends to; `kept` has keys and values of those before, and gets its own."""
    if a.latent:
        return _latent(a, w, b, x, context)
    tokens, head, kv_heads = len(x), a.head(layer), a.kv_heads(layer)
    sizes = (a.heads * head, kv_heads * head, kv_heads * head)
    if a.fused or a.fused_heads:
        all = x @ w[b + "attn_qkv.weight"].T + w.get(b + "attn_qkv.bias", 0)
        q, k, v = numpy.split(all, numpy.cumsum(sizes)[:2], -1)
    else:
        own = "q" if a.shares(layer) else "qk" if a.far_keys_only and not a.windowed(layer) else "qkv"
        q, *rest = (x @ w[f"{b}attn_{p}.weight"].T * w.get(f"{b}attn_{p}.scale", 1) + w.get(f"{b}attn_{p}.bias", 0)
                    for p in own)
        k, v = (rest * 2)[:2] if rest else (q, q)
    if a.gated:
        q, gate = numpy.split(q.reshape(tokens, -1, 2 * head), 2, -1)
    q, k, v = (t.reshape(tokens, -1, head) for t in (q, k, v))

    def normal(t, part):
        weight, whole = w[f"{b}attn_{part}_norm.weight"], t
        if a.joint_norms:
            t = t.reshape(tokens, -1)
        return (_layer_norm(t, weight, 0, a.epsilon) if a.layer_norm else _rms(t, weight, a.epsilon)).reshape(whole.shape)

    if a.head_norms and not a.late_norms:
        q, k = normal(q, "q"), k if a.shares(layer) else normal(k, "k")
    if a.value_norms:
        v = _rms(v, 1, a.epsilon)
    windowed = a.windowed(layer)
    if windowed or not a.still:
        angles, magnitude = _angles(a, numpy.arange(tokens, dtype=float), windowed, context)
        q, k = _rotate(a, q, angles, magnitude), _rotate(a, k, angles, magnitude)
    if a.temperature:
        q = q * (1 + a.temperature * numpy.log1p(numpy.arange(tokens) // a.original))[:, None, None]
    if a.head_norms and a.late_norms:
        q, k = normal(q, "q"), normal(k, "k")
    if not a.shares(layer):
        kept[layer] = k, v
    k, v = (numpy.repeat(t, a.heads // kv_heads, 1) for t in kept[a.source(layer)])
    scores = _cap(numpy.einsum("qhd,khd->hqk", q, k) * (a.attention_scale or 1 / math.sqrt(head)), a.attention_cap)
    back = numpy.arange(tokens)[:, None] - numpy.arange(tokens)
    hidden = (back < 0) | (back >= a.window if windowed else False)
    scores = numpy.where(hidden, -numpy.inf, scores)
    most = scores.max(-1, keepdims=True)
    sinks = w[b + "attn_sinks.weight"][:, None, None] if a.sinks else -numpy.inf
    most = numpy.maximum(most, sinks)
    weights = numpy.exp(scores - most)
    mixed = numpy.einsum("hqk,khd->qhd", weights / (weights.sum(-1, keepdims=True) + numpy.exp(sinks - most)), v)
    if a.gated:
        mixed = mixed / (1 + numpy.exp(-gate))
    if a.gate_matrix:
        gate = x @ w[b + "attn_gate.weight"].T
        mixed = mixed / (1 + numpy.exp(-gate.reshape(mixed.shape)))
    mixed = mixed.reshape(tokens, -1)
    if a.sub_norms:
        mixed = _rms(mixed, w[b + "attn_sub_norm.weight"], a.epsilon)
    return mixed @ w[b + "attn_output.weight"].T * w.get(b + "attn_output.scale", 1) + w.get(b + "attn_output.bias", 0)


def _taps(a, x, weights):
    back = [numpy.pad(x, ((i, 0), (0, 0)))[: len(x)] for i in range(a.taps)]
    return sum(weights[:, a.taps - 1 - i] * rows for i, rows in enumerate(back))


def _convolution(a, w, b, x):
    before, after, x = numpy.split(x @ w[b + "shortconv.in_proj.weight"].T, 3, -1)
    mixed = _taps(a, before * x, w[b + "shortconv.conv.weight"])
    return (after * mixed) @ w[b + "shortconv.out_proj.weight"].T


def _memory(a, w, b, x):
    """The gated delta rule: a matrix [keys, values] per head decays, and is corrected by each token."""
    tokens, keys = len(x), a.delta_key_heads * DELTA
    mixed = _silu(_taps(a, x @ w[b + "attn_qkv.weight"].T, w[b + "ssm_conv1d.weight"]))
    q, k, v = (t.reshape(tokens, -1, DELTA) for t in numpy.split(mixed, [keys, 2 * keys], -1))
    q, k = (t / numpy.maximum(numpy.linalg.norm(t, axis=-1, keepdims=True), a.epsilon) for t in (q, k))
    # Files have the heads of values in such an order that those of keys repeat as a whole.
    q, k = (numpy.tile(t, (1, a.delta_heads // a.delta_key_heads, 1)) for t in (q / math.sqrt(DELTA), k))
    rate = 1 / (1 + numpy.exp(-(x @ w[b + "ssm_beta.weight"].T)))
    step = numpy.logaddexp(0, x @ w[b + "ssm_alpha.weight"].T + w[b + "ssm_dt.bias"])
    decay = numpy.exp(step * w[b + "ssm_a"])
    memory, read = numpy.zeros((a.delta_heads, DELTA, DELTA)), numpy.zeros_like(v)
    for t in range(tokens):
        memory *= decay[t][:, None, None]
        known = numpy.einsum("hkv,hk->hv", memory, k[t])
        memory += numpy.einsum("hk,hv->hkv", k[t], rate[t][:, None] * (v[t] - known))
        read[t] = numpy.einsum("hkv,hk->hv", memory, q[t])
    read = _rms(read, w[b + "ssm_norm.weight"], a.epsilon).reshape(tokens, -1)
    return (read * _silu(x @ w[b + "attn_gate.weight"].T)) @ w[b + "ssm_out.weight"].T


def _added_memory(a, w, b, x):
    """Mamba-2: a matrix [keys, values] per head decays, and each token adds to it."""
    tokens, keys, values = len(x), a.delta_key_heads * DELTA, a.delta_heads * VALUE
    ends = numpy.cumsum([values, values + 2 * keys])
    gate, mixed, step = numpy.split(x @ w[b + "ssm_in.weight"].T, ends, -1)
    mixed = _silu(_taps(a, mixed, w[b + "ssm_conv1d.weight"]) + w[b + "ssm_conv1d.bias"])
    v, k, q = numpy.split(mixed, [values, values + keys], -1)
    v = v.reshape(tokens, -1, VALUE)
    q, k = (numpy.repeat(t.reshape(tokens, -1, DELTA), a.delta_heads // a.delta_key_heads, 1) for t in (q, k))
    step = numpy.logaddexp(0, step + w[b + "ssm_dt.bias"])
    decay = numpy.exp(step * w[b + "ssm_a"][:, 0])
    memory, read = numpy.zeros((a.delta_heads, DELTA, VALUE)), numpy.zeros_like(v)
    for t in range(tokens):
        memory *= decay[t][:, None, None]
        memory += numpy.einsum("hk,hv->hkv", k[t], step[t][:, None] * v[t])
        read[t] = numpy.einsum("hkv,hk->hv", memory, q[t])
    out = (read + w[b + "ssm_d"] * v).reshape(tokens, -1) * _silu(gate)
    if b + "ssm_norm.weight" in w:
        out = _rms(out.reshape(tokens, a.delta_key_heads, -1), w[b + "ssm_norm.weight"], a.epsilon).reshape(tokens, -1)
    return out @ w[b + "ssm_out.weight"].T


def _experts(a, w, b, x, routed=None):
    logits = (x if routed is None else routed) @ w[b + "ffn_gate_inp.weight"].T + w.get(b + "ffn_gate_inp.bias", 0)
    exp = numpy.exp(logits - logits.max(-1, keepdims=True))
    share = 1 / (1 + numpy.exp(-logits)) if a.sigmoid else exp / exp.sum(-1, keepdims=True)
    seen = share + w.get(b + "exp_probs_b.bias", 0)
    if a.groups > 1:
        grouped = seen.reshape(len(x), a.groups, -1)
        sums = numpy.sort(grouped, -1)[..., -2:].sum(-1)
        least = numpy.sort(sums, -1)[:, -a.groups_used, None]
        seen = numpy.where((sums >= least)[..., None], grouped, -numpy.inf).reshape(seen.shape)
    out = numpy.zeros_like(x)
    for t, row in enumerate(x):
        chosen = numpy.argsort(-seen[t], kind="stable")[: a.used]
        by = share[t][chosen]
        for e, part in zip(chosen, a.share_scale * (by / by.sum() if a.whole_shares else by)):
            if a.squaring:
                gate = up = w[b + "ffn_up_exps.weight"][e]
            elif a.beside:
                gate, up = numpy.split(w[b + "ffn_gate_up_exps.weight"][e], 2)
                part = part * w[b + "ffn_down_exps.scale"][e]
            else:
                gate, up = (w[f"{b}ffn_{p}_exps.weight"][e] for p in ("gate", "up"))
            gate, up = gate @ row, up @ row
            bias = numpy.zeros(1)
            if a.clamped:
                biases = [w[f"{b}ffn_{p}_exps.bias"][e] for p in ("gate", "up", "down")]
                gate, up, bias = numpy.minimum(gate + biases[0], 7), numpy.clip(up + biases[1], -7, 7), biases[2]
                inside = gate / (1 + numpy.exp(-1.702 * gate)) * (up + 1)
            elif a.squaring:
                inside = numpy.maximum(up, 0) ** 2
            elif a.rectified:
                inside = numpy.maximum(gate, 0) * up
            else:
                inside = (_gelu if a.gelu else _silu)(gate) * up
            out[t] += part * (w[b + "ffn_down_exps.weight"][e] @ inside + bias)
    if a.shared:
        up, down = (w[f"{b}ffn_{p}_shexp.weight"] for p in ("up", "down"))
        up = x @ up.T
        both = (numpy.maximum(up, 0) ** 2 if a.squaring else _silu(x @ w[b + "ffn_gate_shexp.weight"].T) * up) @ down.T
        if a.shared_gate:
            both = both / (1 + numpy.exp(-(x @ w[b + "ffn_gate_inp_shexp.weight"])))[:, None]
        out += both
    return out


def _feed_forward(a, w, b, x, given=None):
    if b + "ffn_gate_inp.weight" in w and not a.beside:
        return _experts(a, w, b, x, given)
    up = x @ w[b + "ffn_up.weight"].T + w.get(b + "ffn_up.bias", 0)
    if a.plain:
        inside = _gelu(up) if a.plain == "gelu" else numpy.maximum(up, 0) ** 2
        return inside @ w[b + "ffn_down.weight"].T + w.get(b + "ffn_down.bias", 0)
    if a.sub_norms:
        up, gate = (x @ w[f"{b}ffn_{p}.weight"].T * w.get(f"{b}ffn_{p}.scale", 1) for p in ("up", "gate"))
        inside = (numpy.maximum(gate, 0) ** 2 if a.squaring else _silu(gate)) * up
        inside = _rms(inside, w[b + "ffn_sub_norm.weight"], a.epsilon)
        return inside @ w[b + "ffn_down.weight"].T * w.get(b + "ffn_down.scale", 1)
    if a.fused:
        gate, up = up[:, :HIDDEN], up[:, HIDDEN:]
    else:
        gate = x @ w[b + "ffn_gate.weight"].T
    return ((_gelu if a.gelu else _silu)(gate) * up) @ w[b + "ffn_down.weight"].T


def _streams(a, w, ids, x, inputs, context):
    """Alternating updates: several streams, of which each layer computes one and predicts the others (Gemma 3n)."""
    def like(y):
        return y * numpy.sqrt((x[0] ** 2).sum(-1, keepdims=True) / (y**2).sum(-1, keepdims=True))

    x, kept, count = [x], {}, a.streams
    x += [like(x[0] @ matrix.T) for matrix in w["altup_proj.weight"]]
    for i in range(a.layers):
        b = f"blk.{i}."

        def modes(y):
            y = _rms(y, w[b + "altup_router_norm.weight"], a.epsilon) / y.shape[-1]
            return numpy.tanh(y @ w[b + "altup_router.weight"].T)

        by = (modes(x[0]) @ w[b + "altup_predict_coef.weight"].T).reshape(-1, count, count)
        x = [y + numpy.einsum("tk,ktn->tn", by[:, j], numpy.stack(x)) for j, y in enumerate(x)]
        normed = _rms(x[0], w[b + "attn_norm.weight"], a.epsilon)
        thin = normed @ w[b + "laurel_l.weight"].T @ w[b + "laurel_r.weight"].T
        thin = normed + _rms(thin, w[b + "laurel_post_norm.weight"], a.epsilon)
        mixed = _attention(a, w, b, normed, i, context, kept)
        mixed = _rms(mixed, w[b + "post_attention_norm.weight"], a.epsilon)
        mixed = (x[0] + mixed + thin) / math.sqrt(2)
        inside = _rms(mixed, w[b + "ffn_norm.weight"], a.epsilon)
        gate, up = (inside @ w[f"{b}ffn_{p}.weight"].T for p in ("gate", "up"))
        if i < a.sparse:
            least = gate.mean(-1, keepdims=True) + 1.6448533535003662 * gate.std(-1, ddof=1, keepdims=True)
            gate = numpy.maximum(gate - least, 0)
        out = (_gelu(gate) * up) @ w[b + "ffn_down.weight"].T
        computed = mixed + _rms(out, w[b + "post_ffw_norm.weight"], a.epsilon)
        by = modes(computed) @ w[b + "altup_correct_coef.weight"].T + 1
        x = [y + by[:, j, None] * (computed - x[0]) for j, y in enumerate(x)]
        gated = _gelu((x[0] * w[b + "altup_correct_scale.weight"]) @ w[b + "inp_gate.weight"].T) * inputs[:, i]
        own = _rms(gated @ w[b + "proj.weight"].T, w[b + "post_norm.weight"], a.epsilon)
        x = [y + own if j else y for j, y in enumerate(x)]
    others = [like(y @ matrix.T) for y, matrix in zip(x[1:], w["altup_unembd_proj.weight"])]
    return sum(others, x[0]) / count


def logits(a, w, ids, context=512):
    """[len(ids), vocabulary] for tokens at positions 0, 1, ..; `w` as `architectures.write` returns it."""
    def norm(x, name):
        if name in w:
            return _rms(x, w[name], a.epsilon)
        if a.layer_norm:
            return _layer_norm(x, w[name + ".weight"], w.get(name + ".bias", 0), a.epsilon)
        return _rms(x, w[name + ".weight"], a.epsilon)

    x, kept = w["token_embd.weight"][ids], {}
    if a.placed:
        x = x + w["position_embd.weight"][: len(ids)]
    if a.layer_embedding:
        shape = len(ids), a.layers, a.layer_embedding
        own = w["per_layer_token_embd.weight"][ids].reshape(shape) * math.sqrt(a.layer_embedding)
        common = (x @ w["per_layer_model_proj.weight"].T).reshape(shape)
        inputs = (own + _rms(common, w["per_layer_proj_norm.weight"], a.epsilon)) / math.sqrt(2)
    if a.scaled_embeddings:
        x = x * math.sqrt(x.shape[-1])
    x = x * a.embedding_scale
    if a.streams:
        x = _streams(a, w, ids, x, inputs, context)
    for i in range(0 if a.streams else a.layers):
        b = f"blk.{i}."
        normed = norm(x, b + "attn_norm") if a.pre_norms else x
        if i in a.feeding:
            x = x + _feed_forward(a, w, b, normed)
            continue
        mixed = 0
        if i in a.remembering:
            mixed = (_added_memory if a.mamba else _memory)(a, w, b, normed)
        elif i in a.convolving:
            mixed = _convolution(a, w, b, normed)
        if a.attends(i):
            mixed = mixed + _attention(a, w, b, normed, i, context, kept)
        if a.post_norms:
            mixed = _rms(mixed, w[b + "post_attention_norm.weight"], a.epsilon)
        if a.parallel:
            x = x + mixed + _feed_forward(a, w, b, norm(x, b + a.ffn_norm) if a.own_norm else normed)
            continue
        given = x if a.early_router else None
        x = x + a.residual_scale * mixed
        if a.feeding:
            continue
        out = _feed_forward(a, w, b, norm(x, b + a.ffn_norm) if a.pre_norms else x, given)
        if a.beside:
            routed = _rms(x, w[b + "ffn_gate_inp.scale"], a.epsilon) / math.sqrt(x.shape[-1])
            chosen = _experts(a, w, b, norm(x, b + "pre_ffw_norm_2"), routed)
            out = norm(out, b + "post_ffw_norm_1") + norm(chosen, b + "post_ffw_norm_2")
        if a.post_norms:
            out = _rms(out, w[b + "post_ffw_norm.weight"], a.epsilon)
        x = x + a.residual_scale * out
        if a.layer_embedding:
            gated = _gelu(x @ w[b + "inp_gate.weight"].T) * inputs[:, i]
            x = x + _rms(gated @ w[b + "proj.weight"].T, w[b + "post_norm.weight"], a.epsilon)
        x = x * w.get(b + "layer_output_scale.weight", 1)
    out = norm(x, a.last_norm) @ w["token_embd.weight" if a.tied else "output.weight"].T + w.get("output.bias", 0)
    out = out / a.logit_scale if a.divides_logits else out * a.logit_scale
    return _cap(out, a.final_cap)

// Attention. Definitions: KEY and VALUE, elements of a head; HALF_CACHE: keys and values are kept as f16.
//
// A work-item computes one head of one row, a block of positions at a time: the sum and the weighted
// values so far are scaled whenever a larger score comes (Milakov and Gimelshein 2018).

#ifdef HALF_CACHE
#define KEPT(p, i) vload_half(i, (__global const half *)(p))
#define KEPT4(p, i) vload_half4(i, (__global const half *)(p))
#define KEEP(v, p, i) vstore_half_rte(v, i, (__global half *)(p))
typedef ushort kept;
#else
#define KEPT(p, i) (p)[i]
#define KEPT4(p, i) vload4(i, p)
#define KEEP(v, p, i) (p)[i] = (v)
typedef float kept;
#endif

#define BLOCK 16

// Keys and values of new positions go into the cache: [heads][capacity][size].
__kernel void keep(IN(float, x), IN(int, positions), OUT(kept, cache), int rows, int heads, int size,
    int capacity)
{
    OPEN_IN(float, x);
    OPEN_IN(int, positions);
    OPEN_OUT(kept, cache);
    int i = get_global_id(0), head = get_global_id(1), row = get_global_id(2);
    if (i >= size || head >= heads || row >= rows)
        return;
    int at = clamp(positions[row], 0, capacity - 1);
    KEEP(x[((long)row * heads + head) * size + i], cache, ((long)head * capacity + at) * size + i);
}

// New positions in one kernel: queries turn, keys turn on their way into the cache, values go there. A
// work-item has two elements that turn together, or one that does not; see `rope` in elements.cl.
__kernel void turn_and_keep(IN(float, q), IN(float, k), IN(float, v), IN(int, positions), IN(float, table),
    OUT(float, turned), OUT(kept, keys), OUT(kept, values), int rows, int heads, int kv_heads, int capacity,
    int rotated, int half_split)
{
    OPEN_IN(float, q);
    OPEN_IN(float, k);
    OPEN_IN(float, v);
    OPEN_IN(int, positions);
    OPEN_IN(float, table);
    OPEN_OUT(float, turned);
    OPEN_OUT(kept, keys);
    OPEN_OUT(kept, values);
    int p = get_global_id(0), head = get_global_id(1), row = get_global_id(2), pairs = rotated / 2;
    if (head >= heads + 2 * kv_heads || row >= rows)
        return;
    int at = clamp(positions[row], 0, capacity - 1);
    if (head >= heads + kv_heads) {
        head -= heads + kv_heads;
        if (p < VALUE)
            KEEP(v[((long)row * kv_heads + head) * VALUE + p], values, ((long)head * capacity + at) * VALUE + p);
        return;
    }
    if (p >= KEY - pairs)
        return;
    bool is_key = head >= heads;
    head -= is_key ? heads : 0;
    __global const float *x = is_key ? k + ((long)row * kv_heads + head) * KEY : q + ((long)row * heads + head) * KEY;
    int first = p + pairs, second = p + pairs;
    float a = x[first], b = a;
    if (p < pairs) {
        first = half_split ? p : 2 * p;
        second = half_split ? p + pairs : 2 * p + 1;
        float c = table[row * rotated + p], s = table[row * rotated + pairs + p];
        float u = x[first], w = x[second];
        a = u * c - w * s;
        b = u * s + w * c;
    }
    if (is_key) {
        long to = ((long)head * capacity + at) * KEY;
        KEEP(a, keys, to + first);
        KEEP(b, keys, to + second);
    } else {
        turned += ((long)row * heads + head) * KEY;
        turned[first] = a;
        turned[second] = b;
    }
}

// What is attended to: head h of a row, positions first to end - 1 of a plane of keys and of values whose
// rows are `key_row` and `value_row` elements apart; mask, if there is one, holds a number per position.
void attend(__global const float *q, __global const kept *keys, __global const kept *values,
    __global const float *mask, int has_mask, __global float *y, int first, int end, int key_row,
    int value_row, float scale, float cap)
{
    float sums[VALUE];
    for (int i = 0; i < VALUE; i++)
        sums[i] = 0.0f;
    float most = -INFINITY, total = 0.0f;
    for (int block = first; block < end; block += BLOCK) {
        int count = min(BLOCK, end - block);
        float s[BLOCK];
        float top = most;
        for (int b = 0; b < count; b++) {
            __global const kept *key = keys + (long)(block + b) * key_row;
            float4 dot4 = (float4)(0.0f);
            int i = 0;
            for (; i + 4 <= KEY; i += 4)
                dot4 = fma(vload4(0, q + i), KEPT4(key + i, 0), dot4);
            float score = (dot4.x + dot4.y) + (dot4.z + dot4.w);
            for (; i < KEY; i++)
                score += q[i] * KEPT(key, i);
            score *= scale;
            if (cap > 0.0f)
                score = cap * tanh(score / cap);
            if (has_mask)
                score += mask[block + b];
            s[b] = score;
            top = fmax(top, score);
        }
        // All masked so far: nothing to add, and no difference of infinities.
        if (top == -INFINITY)
            continue;
        float shrink = exp(most - top);
        most = top;
        total *= shrink;
        for (int i = 0; i < VALUE; i++)
            sums[i] *= shrink;
        for (int b = 0; b < count; b++) {
            float weight = exp(s[b] - top);
            total += weight;
            __global const kept *value = values + (long)(block + b) * value_row;
            for (int i = 0; i < VALUE; i++)
                sums[i] = fma(weight, KEPT(value, i), sums[i]);
        }
    }
    float inverse = 1.0f / total;
    for (int i = 0; i < VALUE; i++)
        y[i] = sums[i] * inverse;
}

// Causal attention over a cache; window 0: all positions.
__kernel void attention_cached(IN(float, q), IN(int, positions), IN(kept, keys), IN(kept, values),
    OUT(float, y), int rows, int heads, int kv_heads, int capacity, int window, float scale, float cap)
{
    OPEN_IN(float, q);
    OPEN_IN(int, positions);
    OPEN_IN(kept, keys);
    OPEN_IN(kept, values);
    OPEN_OUT(float, y);
    int head = get_global_id(0), row = get_global_id(1);
    if (head >= heads || row >= rows)
        return;
    int position = clamp(positions[row], 0, capacity - 1);
    int first = window ? max(position + 1 - window, 0) : 0;
    long at = (long)row * heads + head, plane = (long)(head / (heads / kv_heads)) * capacity;
    attend(q + at * KEY, keys + plane * KEY, values + plane * VALUE, q, 0, y + at * VALUE, first,
        position + 1, KEY, VALUE, scale, cap);
}

#ifndef HALF_CACHE
// Attention of networks: [batch, queries, heads, values]; q, k and v lie with strides. The mask's strides
// are 0 where it repeats.
__kernel void attention_plain(IN(float, q), IN(float, k), IN(float, v), IN(float, mask), OUT(float, y),
    int heads, int queries, int keys, int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row,
    int v_batch, int v_head, int v_row, int has_mask, int m_batch, int m_head, int m_row, float scale)
{
    OPEN_IN(float, q);
    OPEN_IN(float, k);
    OPEN_IN(float, v);
    OPEN_IN(float, mask);
    OPEN_OUT(float, y);
    int head = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
    if (head >= heads || row >= queries)
        return;
    attend(q + (long)batch * q_batch + (long)head * q_head + (long)row * q_row,
        k + (long)batch * k_batch + (long)head * k_head, v + (long)batch * v_batch + (long)head * v_head,
        mask + (long)batch * m_batch + (long)head * m_head + (long)row * m_row, has_mask,
        y + (((long)batch * queries + row) * heads + head) * VALUE, 0, keys, k_row, v_row, scale, 0.0f);
}
#endif

// Attention. Definitions: KEY and VALUE, elements of a head; HALF_CACHE: keys and values are kept as f16; GROUP,
// work-items that compute one head of one row; SPAN, a power of two of them that have values beside each other.
//
// A block of positions at a time is attended to: the sum and the weighted values so far are scaled whenever a
// larger score comes (Milakov and Gimelshein 2018). On processors a work-item does all of that; on GPUs those of a
// group have a score each, and then values each.

#ifndef GROUP
#define GROUP 1
#endif

#ifdef HALF_CACHE
#define KEPT(p, i) vload_half(i, (__global const half *)(p))
#if KEY % 4 == 0
// Rows of the cache lie aligned: GPUs read four elements at once.
float4 kept4(__global const ushort *p)
{
    uint2 bits = *(__global const uint2 *)p;
    return vload_half4(0, (const half *)&bits);
}
#define KEPT4(p, i) kept4((p) + 4 * (i))
#else
#define KEPT4(p, i) vload_half4(i, (__global const half *)(p))
#endif
#define KEEP(v, p, i) vstore_half_rte(v, i, (__global half *)(p))
typedef ushort kept;
float as_kept(float v)
{
    kept bits;
    vstore_half_rte(v, 0, (half *)&bits);
    return vload_half(0, (const half *)&bits);
}
#else
#define KEPT(p, i) (p)[i]
#define KEPT4(p, i) vload4(i, p)
#define KEEP(v, p, i) (p)[i] = (v)
typedef float kept;
#define as_kept(v) (v)
#endif

#if GROUP == 1
#define BLOCK 16
#define OURS
#define ITEM 0
#define MEET
#define SCRATCH BLOCK
#else
#define BLOCK GROUP
#define OURS __local
#define ITEM get_local_id(0)
#define MEET barrier(CLK_LOCAL_MEM_FENCE)
#define SCRATCH (2 * GROUP)
#endif

// What the work-items of a head have together: a head that is read often, key and value of a new position, and
// scores.
#define HEAD \
    OURS float query[KEY]; \
    OURS float scores[SCRATCH]
#define NEW_HEAD \
    OURS float key[KEY]; \
    OURS float value[VALUE]
#define OWN(q) \
    for (int i = ITEM; i < KEY; i += GROUP) \
        query[i] = (q)[i]; \
    MEET

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
    pair t = turn(x, table + row * rotated, p, pairs, half_split);
    if (is_key) {
        long to = ((long)head * capacity + at) * KEY;
        KEEP(t.a, keys, to + t.first);
        KEEP(t.b, keys, to + t.second);
    } else {
        turned += ((long)row * heads + head) * KEY;
        turned[t.first] = t.a;
        turned[t.second] = t.b;
    }
}

// The product of query and key, of which each is somewhere else.
#define DOT(score, q, KEY4, KEY1) \
    float score; \
    { \
        float4 dot4 = (float4)(0.0f); \
        int i = 0; \
        _Pragma("unroll 8") for (; i + 4 <= KEY; i += 4) \
            dot4 = fma(vload4(0, (q) + i), KEY4, dot4); \
        score = (dot4.x + dot4.y) + (dot4.z + dot4.w); \
        for (; i < KEY; i++) \
            score += (q)[i] * (KEY1); \
    }

// The score of position `at` in a block.
#define SCORE(one, at) \
    float one; \
    if ((at) == last) { \
        DOT(dot, q, vload4(0, last_key + i), last_key[i]); \
        one = dot; \
    } else { \
        __global const kept *key = keys + (long)(at) * key_row; \
        DOT(dot, q, KEPT4(key + i, 0), KEPT(key, i)); \
        one = dot; \
    } \
    one *= scale; \
    if (cap > 0.0f) \
        one = cap * tanh(one / cap); \
    if (masks > 0) \
        one += mask[at]; \
    if (masks > 1) \
        one += more[at]

// A result by the sum of its weights: GUARDED kernels have 0 where that is none, or NaN.
#ifdef GUARDED
#define WEIGHTED(result, total) ((total) > 0.0f ? (result) : 0.0f)
#else
#define WEIGHTED(result, total) (result)
#endif

// What is attended to: the head `q`, positions first to end - 1 of a plane of keys and of values whose rows
// are `key_row` and `value_row` elements apart. Key and value of the last position are `last_key` and
// `last_value`, if `last` is that position, and not in the planes yet. The `masks` first of `mask` and `more` hold a
// number per position; `s` is room for scores.
void attend(OURS const float *q, __global const kept *keys, __global const kept *values, __global const float *mask,
    __global const float *more, int masks, __global float *y, int first, int end, int key_row, int value_row,
    float scale, float cap, int last, OURS const float *last_key, OURS const float *last_value, OURS float *s)
#if GROUP == 1
{
    float sums[VALUE];
    for (int i = 0; i < VALUE; i++)
        sums[i] = 0.0f;
    float most = -INFINITY, total = 0.0f;
    for (int block = first; block < end; block += BLOCK) {
        int count = min(BLOCK, end - block);
        float top = most;
        for (int b = 0; b < count; b++) {
            SCORE(one, block + b);
            s[b] = one;
            top = fmax(top, one);
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
            if (block + b == last) {
                for (int i = 0; i < VALUE; i++)
                    sums[i] = fma(weight, last_value[i], sums[i]);
                continue;
            }
            __global const kept *value = values + (long)(block + b) * value_row;
            for (int i = 0; i < VALUE; i++)
                sums[i] = fma(weight, KEPT(value, i), sums[i]);
        }
    }
    float inverse = 1.0f / total;
    for (int i = 0; i < VALUE; i++)
        y[i] = WEIGHTED(sums[i] * inverse, total);
}
#else
{
    int item = get_local_id(0), part = item / SPAN, parts = GROUP / SPAN, element = item % SPAN;
    OURS float *both = s + GROUP;
    float sums[(VALUE + SPAN - 1) / SPAN];
    for (int e = 0; e * SPAN < VALUE; e++)
        sums[e] = 0.0f;
    float most = -INFINITY, total = 0.0f;
    for (int block = first; block < end; block += BLOCK) {
        int count = min(BLOCK, end - block), stored = last >= block && last < block + count ? count - 1 : count;
        float own = -INFINITY;
        if (item < count) {
            SCORE(one, block + item);
            own = one;
        }
        both[item] = own;
        for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {
            MEET;
            if (item < half_)
                both[item] = fmax(both[item], both[item + half_]);
        }
        MEET;
        float top = fmax(most, both[0]);
        // All masked so far: nothing to add, and no difference of infinities.
        bool none = top == -INFINITY;
        float shrink = none ? 1.0f : exp(most - top), weight = none || item >= count ? 0.0f : exp(own - top);
        most = top;
        total = total * shrink + weight;
        s[item] = weight;
        MEET;
        for (int e = 0; e * SPAN < VALUE; e++) {
            int at = e * SPAN + element;
            sums[e] *= shrink;
            if (at >= VALUE)
                continue;
            __global const kept *value = values + (long)block * value_row + at;
            _Pragma("unroll 8") for (int b = part; b < stored; b += parts)
                sums[e] = fma(s[b], KEPT(value, (long)b * value_row), sums[e]);
            if (stored < count && part == 0)
                sums[e] = fma(s[stored], last_value[at], sums[e]);
        }
        MEET;
    }
    both[item] = total;
    for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        MEET;
        if (item < half_)
            both[item] += both[item + half_];
    }
    MEET;
    float inverse = 1.0f / both[0];
    for (int e = 0; e * SPAN < VALUE; e++) {
        int at = e * SPAN + element;
        MEET;
        s[item] = sums[e];
        MEET;
        if (part == 0 && at < VALUE) {
            float all = 0.0f;
            for (int p = 0; p < parts; p++)
                all += s[p * SPAN + element];
            y[at] = WEIGHTED(all * inverse, both[0]);
        }
    }
}
#endif

// Causal attention over a cache; window 0: all positions.
__kernel void attention_cached(IN(float, q), IN(int, positions), IN(kept, keys), IN(kept, values),
    OUT(float, y), int rows, int heads, int kv_heads, int capacity, int window, float scale, float cap)
{
    OPEN_IN(float, q);
    OPEN_IN(int, positions);
    OPEN_IN(kept, keys);
    OPEN_IN(kept, values);
    OPEN_OUT(float, y);
    HEAD;
    int head = get_group_id(0), row = get_group_id(1);
    int position = clamp(positions[row], 0, capacity - 1);
    int first = window ? max(position + 1 - window, 0) : 0;
    long at = (long)row * heads + head, plane = (long)(head / (heads / kv_heads)) * capacity;
    OWN(q + at * KEY);
    attend(query, keys + plane * KEY, values + plane * VALUE, q, q, 0, y + at * VALUE, first, position + 1, KEY,
        VALUE, scale, cap, -1, query, query, scores);
}

// One head of a new row: query and key of the position turn, key and value go into the planes of the cache if
// `keeps`. Nobody reads them there in the same kernel.
void attend_next(__global const float *q, __global const float *k, __global const float *v,
    __global const float *table, int pairs, int half_split, bool keeps, __global kept *keys,
    __global kept *values, __global float *y, int position, int window, float scale, float cap,
    OURS float *query, OURS float *key, OURS float *value, OURS float *scores)
{
    for (int p = ITEM; p < KEY - pairs; p += GROUP) {
        pair t = turn(q, table, p, pairs, half_split);
        query[t.first] = t.a;
        query[t.second] = t.b;
        t = turn(k, table, p, pairs, half_split);
        key[t.first] = as_kept(t.a);
        key[t.second] = as_kept(t.b);
    }
    for (int i = ITEM; i < VALUE; i += GROUP)
        value[i] = as_kept(v[i]);
    MEET;
    if (keeps) {
        for (int i = ITEM; i < KEY; i += GROUP)
            KEEP(key[i], keys, (long)position * KEY + i);
        for (int i = ITEM; i < VALUE; i += GROUP)
            KEEP(value[i], values, (long)position * VALUE + i);
    }
    attend(query, keys, values, q, q, 0, y, window ? max(position + 1 - window, 0) : 0, position + 1, KEY, VALUE, scale,
        cap, position, key, value, scores);
}

// `turn_and_keep` and `attention_cached` of one row.
typedef struct {
    ulong q, k, v, positions, table, keys, values, y;
    int heads, kv_heads, capacity, rotated, half_split, window;
    float scale, cap;
} attention_next_numbers;

__kernel void attention_next(OF(const float, q), OF(const float, k), OF(const float, v),
    OF(const int, positions), OF(const float, table), OF(kept, keys), OF(kept, values), OF(float, y),
    attention_next_numbers of)
{
    OPEN_OF(const float, q);
    OPEN_OF(const float, k);
    OPEN_OF(const float, v);
    OPEN_OF(const int, positions);
    OPEN_OF(const float, table);
    OPEN_OF(kept, keys);
    OPEN_OF(kept, values);
    OPEN_OF(float, y);
    HEAD;
    NEW_HEAD;
    int head = get_group_id(0), sharing = of.heads / of.kv_heads, kv_head = head / sharing;
    long plane = (long)kv_head * of.capacity;
    attend_next(q + (long)head * KEY, k + (long)kv_head * KEY, v + (long)kv_head * VALUE, table, of.rotated / 2,
        of.half_split, head % sharing == 0, keys + plane * KEY, values + plane * VALUE, y + (long)head * VALUE,
        clamp(positions[0], 0, of.capacity - 1), of.window, of.scale, of.cap, query, key, value, scores);
}

#ifndef HALF_CACHE
// Attention of networks; q, k, v and the result lie with strides. The strides of masks are 0 where they repeat.
__kernel void attention_plain(IN(float, q), IN(float, k), IN(float, v), IN(float, mask), IN(float, more),
    OUT(float, y), int keys, int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row,
    int v_batch, int v_head, int v_row, int y_batch, int y_head, int y_row, int masks, int m_batch, int m_head,
    int m_row, int n_batch, int n_head, int n_row, float scale)
{
    OPEN_IN(float, q);
    OPEN_IN(float, k);
    OPEN_IN(float, v);
    OPEN_IN(float, mask);
    OPEN_IN(float, more);
    OPEN_OUT(float, y);
    HEAD;
    int head = get_group_id(0), row = get_group_id(1), batch = get_group_id(2);
    OWN(q + (long)batch * q_batch + (long)head * q_head + (long)row * q_row);
    attend(query, k + (long)batch * k_batch + (long)head * k_head, v + (long)batch * v_batch + (long)head * v_head,
        mask + (long)batch * m_batch + (long)head * m_head + (long)row * m_row,
        more + (long)batch * n_batch + (long)head * n_head + (long)row * n_row, masks,
        y + (long)batch * y_batch + (long)head * y_head + (long)row * y_row, 0, keys, k_row, v_row, scale, 0.0f,
        -1, query, query, scores);
}
#endif

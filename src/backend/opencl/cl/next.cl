// The first half of a layer of a language model for one row, as processors compute it: a work-item has the
// heads that share a key, for which it prepares the row, computes queries, key and value, and attends.
// Definitions as in weights.cl, where W_OB, LANES and ITEMS are 1 and PREPARE is not 0, and in attention.cl.

// `count` elements of the product with a matrix, from row `n0` of it on.
void columns(__global const uchar *w, __global const float *bias, int has_bias, __local const float *kept, int n0,
    int count, int k, __global float *to)
{
    for (int j0 = 0; j0 < count; j0 += C_OB) {
        __global const uchar *row[COLUMNS];
        EACH_COLUMN row[j] = w + (long)(n0 + min(j0 + j, count - 1)) * ROW_BYTES(k);
        DEF;
        ZERO;
        int chunks = k / 32;
        for (int c = 0; c < chunks; c++)
            COMPUTE(c)
        EACH_COLUMN {
            float s = sum16(t[0][j]);
#ifdef ONE
            for (int e = chunks * 32; e < k; e++)
                s += ONE(row[j], e) * kept[e];
#endif
            if (j0 + j < count)
                to[j0 + j] = s + (has_bias ? bias[n0 + j0 + j] : 0.0f);
        }
    }
}

typedef struct {
    ulong x, w, w_1, w_2, bias, bias_1, bias_2, scale, positions, table, q, k, v, keys, values, y;
    int length, has_bias, heads, kv_heads, capacity, rotated, half_split, window;
    float epsilon, factor, cap;
} next_layer_numbers;

__kernel void next_layer(OF(const float, x), OF(const uchar, w), OF(const uchar, w_1), OF(const uchar, w_2),
    OF(const float, bias), OF(const float, bias_1), OF(const float, bias_2), OF(const float, scale),
    OF(const int, positions), OF(const float, table), OF(float, q), OF(float, k), OF(float, v),
    OF(kept, keys), OF(kept, values), OF(float, y), __local float *shared, next_layer_numbers of)
{
    OPEN_OF(const float, x);
    OPEN_OF(const uchar, w);
    OPEN_OF(const uchar, w_1);
    OPEN_OF(const uchar, w_2);
    OPEN_OF(const float, bias);
    OPEN_OF(const float, bias_1);
    OPEN_OF(const float, bias_2);
    OPEN_OF(const float, scale);
    OPEN_OF(const int, positions);
    OPEN_OF(const float, table);
    OPEN_OF(float, q);
    OPEN_OF(float, k);
    OPEN_OF(float, v);
    OPEN_OF(kept, keys);
    OPEN_OF(kept, values);
    OPEN_OF(float, y);
    HEAD;
    NEW_HEAD;
    int head = get_group_id(0), sharing = of.heads / of.kv_heads, length = of.length;
    int position = clamp(positions[0], 0, of.capacity - 1), has_bias = of.has_bias;
    __local float *row = shared + ITEMS_OF_GROUP;
    prepare(x, scale, row, shared, length, of.epsilon);
    barrier(CLK_LOCAL_MEM_FENCE);
    // What a work-item has written, it reads itself.
    q += (long)head * sharing * KEY;
    k += (long)head * KEY;
    v += (long)head * VALUE;
    columns(w, bias, has_bias, row, head * sharing * KEY, sharing * KEY, length, q);
    columns(w_1, bias_1, has_bias, row, head * KEY, KEY, length, k);
    columns(w_2, bias_2, has_bias, row, head * VALUE, VALUE, length, v);
    keys += (long)head * of.capacity * KEY;
    values += (long)head * of.capacity * VALUE;
    y += (long)head * sharing * VALUE;
    for (int s = 0; s < sharing; s++)
        attend_next(q + s * KEY, k, v, table, of.rotated / 2, of.half_split, s == 0, keys, values, y + s * VALUE,
            position, of.window, of.factor, of.cap, query, key, value, scores);
}

// Products of matrices whose rows are both contiguous. Definitions: W_OB rows and C_V vectors of VEC
// columns make a tile; UNROLL steps of the reduction in one COMPUTE; PACKED: the rows of A lie in panels
// of W_OB, one element of each row behind the other. ACROSS: tiles beside each other are computed by work-items
// beside each other, as GPUs read memory best; else tiles below each other. LANES, work-items that share a tile,
// each with its own part of the reduction, and TILES, tiles of their group. KIND, the function of the results.

#ifndef LANES
#define LANES 1
#endif

#define TILE (C_V * VEC)

#define DEF floatv t[W_OB][C_V]
#define EACH_ROW _Pragma("unroll") for (int i = 0; i < W_OB; i++)
#define EACH_VECTOR _Pragma("unroll") for (int j = 0; j < C_V; j++)
#define ZERO EACH_ROW EACH_VECTOR t[i][j] = (floatv)(0.0f)
#ifdef PACKED
#define ELEMENT(i, k) a[(k) * W_OB + (i)]
#else
#define ELEMENT(i, k) a##_row[i][k]
#endif
#define LOAD(k) \
    floatv v[C_V]; \
    EACH_VECTOR v[j] = VLOAD(b + (long)(k) * n_total + j * VEC)
#define COMPUTE(k) \
    { \
        LOAD(k); \
        EACH_ROW { \
            floatv s = (floatv)(ELEMENT(i, k)); \
            EACH_VECTOR t[i][j] = fma(s, v[j], t[i][j]); \
        } \
    }

// y[z][m][n] = function(sum_k a[z][m][k] b[z][k][n] + bias + added). z counts batches of `inner` each;
// strides of a and b per outer and inner batch, in elements. bias_kind: 0 none, 1 one number per row,
// 2 per column; `bias_inner` is its stride per inner batch.
__kernel void gemm(IN(float, a), IN(float, b), IN(float, bias), IN(float, added), OUT(float, y),
    int m_total, int n_total, int k_total, int inner, int a_outer, int a_inner, int b_outer, int b_inner,
    int bias_kind, int bias_inner, int has_added, float fa, float fb)
{
    OPEN_IN(float, a);
    OPEN_IN(float, b);
    OPEN_IN(float, bias);
    OPEN_IN(float, added);
    OPEN_OUT(float, y);
#ifdef ACROSS
    int z = get_global_id(2), m0 = get_global_id(1) / LANES * W_OB, first = get_global_id(0) * TILE;
#else
    int z = get_global_id(2), m0 = get_global_id(0) * W_OB, first = get_global_id(1) * TILE;
#endif
#if LANES == 1
    if (m0 >= m_total || first >= n_total)
        return;
#endif
    // The last tile of a row begins earlier, and stores only what no other does.
    int n0 = min(first, n_total - TILE);
    a += (long)(z / inner) * a_outer + (long)(z % inner) * a_inner;
    b += (long)(z / inner) * b_outer + (long)(z % inner) * b_inner + n0;
    bias += (z % inner) * bias_inner;
#ifdef PACKED
    a += (long)m0 * k_total;
#else
    __global const float *a_row[W_OB];
    EACH_ROW a_row[i] = a + (long)min(m0 + i, m_total - 1) * k_total;
#endif
    DEF;
    ZERO;
#if LANES == 1
    int k = 0, end = k_total;
#else
    int lane = get_local_id(1), each = (k_total + LANES - 1) / LANES;
    int k = min(lane * each, k_total), end = min(k + each, k_total);
#endif
    for (; k + UNROLL <= end; k += UNROLL) {
        _Pragma("unroll") for (int u = 0; u < UNROLL; u++)
            COMPUTE(k + u)
    }
    for (; k < end; k++)
        COMPUTE(k)
#if LANES > 1
    __local float sums[LANES * TILES * W_OB * TILE];
    __local float *own = sums + get_local_id(0);
    EACH_ROW EACH_VECTOR {
        float s[VEC];
        VSTORE(t[i][j], s);
        for (int l = 0; l < VEC; l++)
            own[((lane * W_OB + i) * TILE + j * VEC + l) * TILES] = s[l];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    // Rows are summed up and stored by one lane each.
    EACH_ROW {
        if (i % LANES != lane)
            continue;
        EACH_VECTOR {
            float s[VEC];
            _Pragma("unroll") for (int l = 0; l < VEC; l++) {
                s[l] = 0.0f;
                // Unrolled, it would take drivers long to build.
                _Pragma("unroll 1") for (int of = 0; of < LANES; of++)
                    s[l] += own[((of * W_OB + i) * TILE + j * VEC + l) * TILES];
            }
            t[i][j] = VLOAD(s);
        }
    }
#endif
    EACH_ROW {
#if LANES > 1
        if (i % LANES != lane || first >= n_total)
            continue;
#endif
        int m = m0 + i;
        if (m < m_total) {
            long at = ((long)z * m_total + m) * n_total + n0;
            EACH_VECTOR {
                floatv v = t[i][j];
                if (bias_kind == 1)
                    v += (floatv)(bias[m]);
                if (bias_kind == 2)
                    v += VLOAD(bias + n0 + j * VEC);
                if (has_added)
                    v += VLOAD(added + at + j * VEC);
                v = function_v(v, KIND, fa, fb);
                STORE(v, y + at + j * VEC, first - n0 - j * VEC, VEC);
            }
        }
    }
}

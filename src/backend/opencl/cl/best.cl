// The largest elements of rows, in two steps: those of each part of a row, then those of all parts.
// Definitions: MOST, how many there can be.

// Puts a number among the best so far, which are in order, unless it is worse than all of them or equal to
// the last: of equal ones the first stays.
#define PUT(v, place) \
    { \
        int j = count < k ? count++ : k - 1; \
        for (; j > 0 && values[j - 1] < (v); j--) { \
            values[j] = values[j - 1]; \
            places[j] = places[j - 1]; \
        } \
        values[j] = (v); \
        places[j] = (place); \
    }

// Part p of row r: elements p * part to (p + 1) * part - 1, which are k at least in the first part. Where
// there are fewer, negative places follow.
__kernel void best_of_parts(IN(float, x), OUT(float, best), OUT(int, at), int n, int part, int k)
{
    OPEN_IN(float, x);
    OPEN_OUT(float, best);
    OPEN_OUT(int, at);
    int p = get_global_id(0), r = get_global_id(1), parts = (n + part - 1) / part;
    if (p >= parts)
        return;
    float values[MOST];
    int places[MOST];
    int count = 0, end = min((p + 1) * part, n), i = p * part;
    x += (long)r * n;
    for (; i < end; i++) {
        // Most are worse than what is there.
        if (count == k && i + 16 <= end && all(islessequal(vload16(0, x + i), (float16)(values[k - 1])))) {
            i += 15;
            continue;
        }
        float v = isnan(x[i]) ? INFINITY : x[i];
        if (count == k && v <= values[k - 1])
            continue;
        PUT(v, i)
    }
    long to = ((long)r * parts + p) * k;
    for (int j = 0; j < k; j++) {
        best[to + j] = j < count ? values[j] : -INFINITY;
        at[to + j] = j < count ? places[j] : -1;
    }
}

// y[r] = places and values of the best of a row.
__kernel void best_of_all(IN(float, best), IN(int, at), OUT(float, y), int parts, int k)
{
    OPEN_IN(float, best);
    OPEN_IN(int, at);
    OPEN_OUT(float, y);
    int r = get_global_id(0), count = 0;
    float values[MOST];
    int places[MOST];
    best += (long)r * parts * k;
    at += (long)r * parts * k;
    for (int i = 0; i < parts * k; i++) {
        if (at[i] < 0 || (count == k && best[i] <= values[k - 1]))
            continue;
        PUT(best[i], at[i])
    }
    y += (long)r * 2 * k;
    for (int j = 0; j < k; j++) {
        y[j] = places[j];
        y[k + j] = values[j];
    }
}

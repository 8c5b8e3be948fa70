/* Elementwise work in one pass over memory each: IVON, sites, gathering bytes, the grids of exact sums. Rows [c, n] lie one
 * after the other.
 *
 * Every operation here is rounded as written (the file is compiled without contraction into fused multiply-adds and
 * without reordering), so the results have the same bits as the tensor operations in data, noise.py, local and
 * grid.py.
 */
#include <math.h>
#include <stdint.h>

#define BLOCK 2048 /* so many numbers' random bits stay in the nearest cache */

static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static void shift(long n, const uint32_t *restrict word, const int16_t *restrict quantile, float scale,
                  const float *restrict mean, const float *restrict variance, float *restrict noise,
                  float *restrict theta) {
    const uint16_t *bits = (const uint16_t *)word;
    for (long i = 0; i < n; i++) {
        float z = (float)quantile[bits[i] & 16383] * scale;
        float e = z * sqrtf(variance[i]);
        noise[i] = e;
        theta[i] = mean[i] + e;
    }
}

/* noise <- z √variance and theta <- mean + noise, z the `draw`-th quantile noise of each row's key */
void perturb(long rows, long n, const uint64_t *key, uint64_t draw, const int16_t *quantile, float scale,
             const float *mean, const float *variance, float *noise, float *theta) {
    uint32_t word[BLOCK / 2];
    for (long row = 0; row < rows; row++) {
        uint64_t own = mix64(key[row] + (draw + 1) * 0x9E3779B97F4A7C15u);
        uint32_t low = (uint32_t)own, high = (uint32_t)(own >> 32);
        for (long at = 0; at < n; at += BLOCK) {
            long size = n - at < BLOCK ? n - at : BLOCK, k = row * n + at;
            uint32_t first = low + (uint32_t)(at / 2);
            for (uint32_t j = 0; j < (size + 1) / 2; j++) word[j] = mix32(mix32(first + j) ^ high);
            shift(size, word, quantile, scale, mean + k, variance + k, noise + k, theta + k);
        }
    }
}

/* -2 log u for u in (0, 1]: u = 2^e m, and log m = 2 artanh((m - 1)/(m + 1)), |m - 1| < 0.42, by its series */
static inline float twice_minus_log(float u) {
    union { float value; int32_t bits; } m = {u};
    int32_t above = m.bits - 0x3F3504F3; /* √½ */
    float e = (float)(above >> 23);
    m.bits = (above & 0x007FFFFF) + 0x3F3504F3;
    float s = (m.value - 1.0f) / (m.value + 1.0f), z = s * s;
    float series = (((z * (1.0f / 9) + 1.0f / 7) * z + 1.0f / 5) * z + 1.0f / 3) * z + 1.0f;
    return (e * 0.693147182f + s * 2.0f * series) * -2.0f; /* log 2 */
}

/* out[at..at+n) <- out + scale z, z ~ N(0, 1) from random words (Box & Muller 1958): of each pair one word gives the
 * radius, the other the angle within a quarter of a turn, and which of the four quarters */
void add_normal(long at, long n, const uint32_t *restrict word, float scale, float *restrict out) {
    long half = (n + 1) / 2;
    float first[BLOCK], second[BLOCK];
    for (long low = 0; low < half; low += BLOCK) {
        long size = half - low < BLOCK ? half - low : BLOCK;
        for (long i = 0; i < size; i++) {
            float radius = sqrtf(twice_minus_log(((float)word[low + i] + 0.5f) * 0x1p-32f));
            int32_t turn = (int32_t)word[half + low + i];
            float t = (float)(turn >> 2) * 1.46291804e-9f, z = t * t; /* π/4 · 2^-29 */
            float sine = ((((z * (1.0f / 362880) - 1.0f / 5040) * z + 1.0f / 120) * z - 1.0f / 6) * z + 1.0f) * t;
            float cosine = (((z * (1.0f / 40320) - 1.0f / 720) * z + 1.0f / 24) * z - 0.5f) * z + 1.0f;
            float x = (turn & 1 ? -radius : radius) * cosine, y = radius * sine;
            first[i] = turn & 2 ? y : x;
            second[i] = turn & 2 ? x : y;
        }
        float *restrict here = out + at + low, *restrict there = here + half;
        long rest = n - half - low < size ? n - half - low : size; /* an odd n leaves one out */
        for (long i = 0; i < size; i++) here[i] += first[i] * scale;
        for (long i = 0; i < rest; i++) there[i] += second[i] * scale;
    }
}

/* mask <- scale where the word of the row's key, the draw and the place is at least `below`, else 0 */
void dropout(long rows, long n, const uint64_t *key, uint64_t draw, uint64_t below, float scale, float *mask) {
    for (long row = 0; row < rows; row++) {
        uint64_t own = mix64(key[row] + (draw + 1) * 0x9E3779B97F4A7C15u);
        uint32_t low = (uint32_t)own, high = (uint32_t)(own >> 32), least = (uint32_t)below;
        float *restrict out = mask + row * n, kept = below >> 32 ? 0.0f : scale; /* 2^32: none is kept */
        for (long i = 0; i < n; i++) out[i] = mix32(mix32(low + (uint32_t)i) ^ high) >= least ? kept : 0.0f;
    }
}

/* slope <- slope + (precision theta - shift), the gradient of a Gaussian site's energy; site is [rows, 2, n] */
void add_pull(long rows, long n, const float *site, const float *theta, float *slope) {
    for (long row = 0; row < rows; row++) {
        const float *restrict move = site + 2 * row * n, *restrict precision = move + n;
        const float *restrict here = theta + row * n;
        float *restrict total = slope + row * n;
        for (long i = 0; i < n; i++) total[i] += precision[i] * here[i] - move[i];
    }
}

static void step(long n, float *restrict mean, float *restrict variance, float *restrict momentum,
                 const float *restrict offset, const float *restrict pull, const float *restrict noise,
                 const float *factor, const float *grad, float curve, float debiased, float lr, float keep, float take,
                 float rate) {
    for (long i = 0; i < n; i++) {
        float x = noise[i] * factor[i] * curve - rate + pull[i] * variance[i] * rate;
        float g = momentum[i] * keep + grad[i] * take;
        float v = variance[i] / (x * x * 0.5f + x + 1.0f);
        float slope = pull[i] * mean[i] + offset[i] + g * debiased;
        momentum[i] = g;
        variance[i] = v;
        mean[i] = mean[i] - slope * v * lr;
    }
}

/* one step of IVON on every row; curve, debiased and lr have a number for each */
void ivon_step(long rows, long n, float *mean, float *variance, float *momentum, const float *offset,
               const float *pull, const float *noise, const float *factor, const float *grad, const float *curve,
               const float *debiased, const float *lr, float keep, float take, float rate) {
    for (long r = 0, k = 0; r < rows; r++, k += n)
        step(n, mean + k, variance + k, momentum + k, offset + k, pull + k, noise + k, factor + k, grad + k,
             curve[r], debiased[r], lr[r], keep, take, rate);
}

static void convert(long n, const uint8_t *restrict stored, float scale, float shift, float *restrict out) {
    for (long i = 0; i < n; i++) out[i] = (float)stored[i] * scale + shift;
}

/* out <- stored[index] · scale + shift: examples of n bytes each */
void gather(long count, long n, const int64_t *index, const uint8_t *stored, float scale, float shift, float *out) {
    for (long k = 0; k < count; k++) convert(n, stored + index[k] * n, scale, shift, out + k * n);
}

/* word <- [word +] round(part · scale), to the nearest and even, as in grid.py */
void to_grid(long n, const float *restrict part, float scale, long adds, int64_t *restrict word) {
    if (adds)
        for (long i = 0; i < n; i++) word[i] += llrintf(part[i] * scale);
    else
        for (long i = 0; i < n; i++) word[i] = llrintf(part[i] * scale);
}

/* (double)word, rounded once, by operations that processors without a conversion of many words at once have: both
 * halves as the low bits of large powers of two, 2^84 and 2^52 */
static inline double as_double(int64_t word) {
    union { uint64_t bits; double value; } high, low;
    high.bits = ((uint64_t)word >> 32 ^ 0x80000000u) | 0x4530000000000000u;
    low.bits = ((uint64_t)word & 0xFFFFFFFFu) | 0x4330000000000000u;
    return high.value - (0x1p84 + 0x1p63 + 0x1p52) + low.value;
}

/* total <- word · 2^-bits / weight */
void from_grid(long n, const int64_t *restrict word, long bits, const double *weight, float *restrict total) {
    const double scale = ldexp(1.0, -(int)bits), by = weight[0];
    for (long i = 0; i < n; i++) total[i] = (float)(as_double(word[i]) * scale / by);
}

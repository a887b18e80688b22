// The draw: an exponential race, in which every token's number is a hash of the row's key and the token's id.
#pragma once

#include "sample_passes.h"

STOLON_BEGIN

// The finaliser of MurmurHash3 over the id and both words of the key.
inline uint32_t hash(uint32_t id, const uint32_t* key) {
    uint32_t h = id * 0x9E3779B1u + key[0];
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu + key[1];
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

inline float uniform(uint32_t hashed) {
    return std::min((float(hashed) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
}

// The token with the largest weight / E, E = -log(1 - u).
//
// Since E >= u, a token has lost if u * bound > weight, where bound is the best score so far. That is
// asked of whole vectors, with a weight that is a little too large: 2^x <= (1 + x - floor x) 2^floor x.
// The number's lowest bit is left out, and the bound lowered to cover that and all rounding.
inline uint32_t race(const Tokens& from, int64_t first, Cut cut, float top, double inverse, const uint32_t* key) {
    double best_score = 0.0;
    uint32_t winner = 0;
    const auto run = [&](int64_t at) {
        const uint32_t id = from.id(at);
        const double score =
            weight_of(from.y[at], top, inverse) / -std::log1p(-double(uniform(hash(id, key))));
        if (score > best_score || (score == best_score && id < winner)) {
            best_score = score;
            winner = id;
        }
    };
    run(first);
    const vf value = vset(cut.value), t = vset(top), inv = vset(float(inverse));
    const vf log2e = vset(1.44269504088896341f * 0x1p23f), one = vset(127.0f * 0x1p23f), none = vset(0.0f);
    const vi k0 = iset(key[0]), k1 = iset(key[1]);
    const vi c0 = iset(0x9E3779B1u), c1 = iset(0x85EBCA6Bu), c2 = iset(0xC2B2AE35u);
    vf bound = vset(float(best_score * (0.998 * 0x1p-31)));
    for (int64_t i = 0; i < from.count; i += W) {
        const vf y = from.at(i);
        uint32_t mask = where_ge(y, value);
        if (!mask) continue;
        vi h = from.id_at(i) * c0 + k0;
        h = (h ^ shift_right<16>(h)) * c1 + k1;
        h = (h ^ shift_right<13>(h)) * c2;
        h = h ^ shift_right<16>(h);
        const vf weight = from_whole_bits(vmax(vfma((y - t) * inv, log2e, one), none));
        mask &= where_ge(weight, halved_to_float(h) * bound);
        if (!mask) continue;
        const double before = best_score;
        for (; mask; mask &= mask - 1) {
            const int64_t at = i + __builtin_ctz(mask);
            if (at < from.count && cut.keeps(from.y[at], from.id(at))) run(at);
        }
        if (best_score > before) bound = vset(float(best_score * (0.998 * 0x1p-31)));
    }
    return winner;
}

STOLON_END

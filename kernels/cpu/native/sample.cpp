#include "sample.h"

#include <cstring>

#include "isa.h"
#include "sample_filters.h"

STOLON_BEGIN

namespace {

constexpr double kGreedyBelow = 1e-5;  // any other token's weight would underflow anyhow

// ---------------------------------------------------------------------------------------------------
// The draw

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
uint32_t race(const Tokens& from, int64_t first, Cut cut, float top, double inverse, const uint32_t* key) {
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

// ---------------------------------------------------------------------------------------------------
// A row

inline bool inside(const int64_t* ids, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; ++i) {
        if (ids[i] < 0 || ids[i] >= vocab) return false;
    }
    return true;
}

class Row {
   public:
    Row(const SampleRow& row, SampleResult& result, int64_t vocab, Work& work)
        : row_(row), out_(result), vocab_(vocab), work_(work), tokens_{row.logits, nullptr, vocab} {}

    void run() {
        out_.top_found = 0;
        out_.token = -1;
        out_.logprob = 0.0;
        out_.status = denies_in_place() ? choose_without_denied() : choose();
    }

   private:
    // The usual row under a grammar: many tokens are denied, and nothing else is to be done to it.
    bool denies_in_place() const {
        return row_.lent && row_.mask == MaskForm::Deny && row_.mask_count && row_.report == Report::None &&
               !row_.banned_count && !row_.counted_count && !row_.biased_count && !repeats();
    }

    // What `choose` does for such a row, without a copy of it and a second look at all of it.
    SampleStatus choose_without_denied() {
        if (!inside(row_.mask_ids, row_.mask_count, vocab_)) return SampleStatus::OutOfRange;
        float* kept = work_.adjusted;
        float* y = row_.lent;
        bool nan = false, infinite = false;
        for (int64_t i = 0; i < row_.mask_count; ++i) {
            const float x = kept[i] = y[row_.mask_ids[i]];
            nan |= x != x;
            infinite |= x == kInfinity;
            y[row_.mask_ids[i]] = -kInfinity;
        }
        raw_ = found_ = scan(y, vocab_, work_.groups);
        found_.has_nan |= nan;
        SampleStatus status = finite(found_);
        if (status != SampleStatus::NotANumber && infinite) status = SampleStatus::Infinite;
        if (status == SampleStatus::Ok) take();
        // Backwards: an id may stand there twice.
        for (int64_t i = row_.mask_count; i-- > 0;) y[row_.mask_ids[i]] = kept[i];
        return status;
    }

    SampleStatus choose() {
        if (listed() && !row_.mask_count) return SampleStatus::NothingAllowed;
        if (row_.mask != MaskForm::Listed) {
            // Whatever is allowed: a row that holds a NaN is broken.
            raw_ = found_ = scan(row_.logits, vocab_, work_.raw_groups);
            if (const auto status = finite(raw_); status != SampleStatus::Ok) return status;
        }
        if (row_.report == Report::Total) {
            out_.logprob = double(raw_.top) + std::log(total_weight(tokens_, raw_.top, 1.0));
            return SampleStatus::Ok;
        }
        if (const auto status = restrict(true); status != SampleStatus::Ok) return status;
        if (found_.top == -kInfinity && row_.banned_count && masked()) {
            // The mask allows nothing but what is banned.
            tokens_ = {row_.logits, nullptr, vocab_};
            found_ = raw_;
            restrict(false);
        }
        if (tokens_.y != row_.logits) {
            if (const auto status = finite(found_); status != SampleStatus::Ok) return status;
        }
        take();
        return SampleStatus::Ok;
    }

    // The token, of logits that are looked through and in order.
    void take() {
        const int64_t first = first_of(tokens_.y, tokens_.count, found_);
        if (row_.temperature < kGreedyBelow || tokens_.count == 1) {
            out_.token = tokens_.id(first);
            report_greedy();
        } else {
            draw(first);
        }
    }

    bool listed() const { return row_.mask == MaskForm::Allow || row_.mask == MaskForm::Listed; }

    bool masked() const {
        return row_.mask != MaskForm::None && (row_.mask != MaskForm::Deny || row_.mask_count);
    }

    // A copy of the row that may be changed.
    float* own() {
        if (tokens_.y == row_.logits) {
            std::memcpy(work_.adjusted, row_.logits, size_t(vocab_) * sizeof(float));
            tokens_.y = work_.adjusted;
        }
        return work_.adjusted;
    }

    bool repeats() const { return row_.seen_count && row_.repetition != 1.0f; }
    bool counts() const { return row_.counted_count && (row_.frequency != 0.0f || row_.presence != 0.0f); }

    // Penalties and bias. `place` finds the logit of an id; null where it is not wanted.
    template <class Place>
    bool adjust(const Place& place) {
        if (repeats()) {
            if (!inside(row_.seen, row_.seen_count, vocab_)) return false;
            for (int64_t i = 0; i < row_.seen_count; ++i) {
                float* y = place(row_.seen[i]);
                if (!y) continue;
                // From the row itself: an id may stand there twice.
                const float x = row_.logits[row_.seen[i]];
                *y = x > 0.0f ? x / row_.repetition : x * row_.repetition;
            }
        }
        if (counts()) {
            if (!inside(row_.counted, row_.counted_count, vocab_)) return false;
            for (int64_t i = 0; i < row_.counted_count; ++i) {
                float* y = place(row_.counted[i]);
                if (!y) continue;
                *y -= row_.frequency * row_.counts[i];
                if (row_.counts[i] > 0.0f) *y -= row_.presence;
            }
        }
        if (row_.biased_count) {
            if (!inside(row_.biased, row_.biased_count, vocab_)) return false;
            for (int64_t i = 0; i < row_.biased_count; ++i) {
                if (float* y = place(row_.biased[i])) *y += row_.bias[i];
            }
        }
        return true;
    }

    // Penalties, bias, mask, bans.
    SampleStatus restrict(bool banning) {
        if (listed()) return allow(banning);
        if (repeats() || counts() || row_.biased_count) {
            float* y = own();
            if (!adjust([y](int64_t id) { return y + id; })) return SampleStatus::OutOfRange;
        }
        if (row_.mask == MaskForm::Bits) {
            const float* x = tokens_.y;
            float* y = work_.adjusted;
            const uint8_t* bits = row_.mask_bits;
            const int64_t known = std::min(row_.mask_count, vocab_);
            for (int64_t i = 0; i < known; ++i) y[i] = bits[i] ? x[i] : -kInfinity;
            std::fill(y + known, y + vocab_, -kInfinity);
            tokens_.y = y;
        } else if (row_.mask == MaskForm::Deny && row_.mask_count) {
            if (!inside(row_.mask_ids, row_.mask_count, vocab_)) return SampleStatus::OutOfRange;
            float* y = own();
            for (int64_t i = 0; i < row_.mask_count; ++i) y[row_.mask_ids[i]] = -kInfinity;
        }
        if (banning && row_.banned_count) {
            if (!inside(row_.banned, row_.banned_count, vocab_)) return SampleStatus::OutOfRange;
            float* y = own();
            for (int64_t i = 0; i < row_.banned_count; ++i) y[row_.banned[i]] = -kInfinity;
        }
        if (tokens_.y != row_.logits) found_ = scan(tokens_.y, vocab_, work_.groups);
        return SampleStatus::Ok;
    }

    // The allowed tokens as a list. Nothing else of the row is looked at.
    SampleStatus allow(bool banning) {
        if (!inside(row_.mask_ids, row_.mask_count, vocab_)) return SampleStatus::OutOfRange;
        if (!inside(row_.banned, row_.banned_count, vocab_)) return SampleStatus::OutOfRange;
        uint32_t* ids = work_.list_ids;
        int64_t count = 0;
        bool ascending = true;
        for (int64_t i = 0; i < row_.mask_count && ascending; ++i) {
            ascending = i == 0 || row_.mask_ids[i] > row_.mask_ids[i - 1];
        }
        if (ascending) {
            for (; count < row_.mask_count; ++count) ids[count] = uint32_t(row_.mask_ids[count]);
        } else {
            // Any order, any number of times: mark them in a row of the vocabulary.
            uint32_t* marks = work_.band_ids;
            std::fill(marks, marks + vocab_, 0u);
            for (int64_t i = 0; i < row_.mask_count; ++i) marks[row_.mask_ids[i]] = 1;
            for (int64_t i = 0; i < vocab_; ++i) {
                if (marks[i]) ids[count++] = uint32_t(i);
            }
        }
        if (banning && row_.banned_count) {
            const auto banned = [&](uint32_t id) {
                return std::find(row_.banned, row_.banned + row_.banned_count, int64_t(id)) !=
                       row_.banned + row_.banned_count;
            };
            if (!std::all_of(ids, ids + count, banned)) count = std::remove_if(ids, ids + count, banned) - ids;
        }
        for (int64_t i = 0; i < count; ++i) work_.list[i] = row_.logits[ids[i]];
        const auto place = [&](int64_t id) {
            const uint32_t* found = std::lower_bound(ids, ids + count, uint32_t(id));
            return found < ids + count && *found == uint32_t(id) ? work_.list + (found - ids) : nullptr;
        };
        if (!adjust(place)) return SampleStatus::OutOfRange;
        tokens_ = {work_.list, ids, count};
        found_ = scan(work_.list, count, work_.groups);
        return SampleStatus::Ok;
    }

    void draw(int64_t first) {
        const float top = found_.top;
        const double inverse = 1.0 / row_.temperature;
        if (row_.top_k > 0 && row_.top_k < tokens_.count) {
            tokens_ = top_k(tokens_, found_, row_.top_k, top, inverse, work_);
            first = std::find(tokens_.y, tokens_.y + tokens_.count, top) - tokens_.y;
            changed_ = true;
        }
        Cut cut = kNoCut;
        if (row_.top_p < 1.0) cut = cut_at<false>(tokens_, top, inverse, row_.top_p, work_);
        if (row_.min_p > 0.0) cut = tighter(cut, cut_min_p(top, inverse, row_.min_p));
        out_.token = race(tokens_, first, cut, top, inverse, row_.key);
        if (row_.report != Report::Processed) {
            report_raw();
            return;
        }
        const double log_total = std::log(kept_weight(tokens_, cut, top, inverse));
        int64_t at = out_.token;
        if (tokens_.ids) {
            at = std::lower_bound(tokens_.ids, tokens_.ids + tokens_.count, uint32_t(at)) - tokens_.ids;
        }
        out_.logprob = (double(tokens_.y[at]) - double(top)) * inverse - log_total;
        if (!row_.top) return;
        if (changed_) found_ = scan(tokens_.y, tokens_.count, work_.groups);
        list_best(tokens_, found_, cut, top, inverse, log_total);
    }

    void report_greedy() {
        if (row_.report != Report::Processed) {
            report_raw();
        } else if (row_.top) {
            out_.top_found = 1;
            out_.top_ids[0] = out_.token;
            out_.top_logprobs[0] = 0.0;
        }
    }

    // Of the logits that nobody has touched.
    void report_raw() {
        if (row_.report != Report::Raw && row_.report != Report::Tempered) return;
        const bool plain = row_.report == Report::Raw || row_.temperature < kGreedyBelow;
        const double inverse = plain ? 1.0 : 1.0 / row_.temperature;
        const Tokens raw{row_.logits, nullptr, vocab_};
        const double log_total = std::log(total_weight(raw, raw_.top, inverse));
        out_.logprob = (double(row_.logits[out_.token]) - double(raw_.top)) * inverse - log_total;
        if (row_.top) list_best(raw, raw_, kNoCut, raw_.top, inverse, log_total);
    }

    void list_best(const Tokens& from, const Scan& found, Cut cut, float top, double inverse, double log_total) {
        const int64_t count = best(from, found, row_.top, work_);
        for (int64_t i = 0; i < count; ++i) {
            const float y = value_of(work_.keys[i]);
            const uint32_t id = id_of(work_.keys[i]);
            if (!cut.keeps(y, id)) break;
            out_.top_ids[i] = id;
            out_.top_logprobs[i] = (double(y) - double(top)) * inverse - log_total;
            out_.top_found = i + 1;
        }
    }

    const SampleRow& row_;
    SampleResult& out_;
    const int64_t vocab_;
    Work& work_;
    Tokens tokens_;
    Scan raw_{}, found_{};
    bool changed_ = false;
};

}  // namespace

void sample(const Lane& lane, const SampleArgs& args) {
    Work work(lane.scratch, args.vocab);
    for (int64_t i = Lane::claim(*args.counter); i < args.count; i = Lane::claim(*args.counter)) {
        Row(args.rows[i], args.results[i], args.vocab, work).run();
    }
}

STOLON_END

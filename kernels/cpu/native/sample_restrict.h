// What may be drawn of a row: penalties, logit bias, mask and bans.
#pragma once

#include <algorithm>
#include <cstring>

#include "sample_passes.h"

STOLON_BEGIN

inline bool inside(const int64_t* ids, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; ++i) {
        if (ids[i] < 0 || ids[i] >= vocab) return false;
    }
    return true;
}

inline bool listed(const SampleRow& row) { return row.mask == MaskForm::Allow || row.mask == MaskForm::Listed; }

inline bool masked(const SampleRow& row) {
    return row.mask != MaskForm::None && (row.mask != MaskForm::Deny || row.mask_count);
}

inline bool repeats(const SampleRow& row) { return row.seen_count && row.repetition != 1.0f; }

inline bool counts(const SampleRow& row) {
    return row.counted_count && (row.frequency != 0.0f || row.presence != 0.0f);
}

class Restriction {
   public:
    // `tokens` and `found`: the whole row, and what was found in it.
    Restriction(const SampleRow& row, int64_t vocab, Work& work, Tokens& tokens, Scan& found)
        : row_(row), vocab_(vocab), work_(work), tokens_(tokens), found_(found) {}

    // Leave of the tokens what may be drawn, and what was found in that.
    SampleStatus apply() {
        const Scan whole = found_;
        if (const auto status = change(true); status != SampleStatus::Ok) return status;
        if (found_.top == -kInfinity && row_.banned_count && masked(row_)) {
            // The mask allows nothing but what is banned.
            tokens_ = {row_.logits, nullptr, vocab_};
            found_ = whole;
            change(false);
        }
        return tokens_.y == row_.logits ? SampleStatus::Ok : finite(found_);
    }

   private:
    // A copy of the row that may be changed.
    float* own() {
        if (tokens_.y == row_.logits) {
            std::memcpy(work_.adjusted, row_.logits, size_t(vocab_) * sizeof(float));
            tokens_.y = work_.adjusted;
        }
        return work_.adjusted;
    }

    // Penalties and bias. `place` finds the logit of an id; null where it is not wanted.
    template <class Place>
    bool adjust(const Place& place) {
        if (repeats(row_)) {
            if (!inside(row_.seen, row_.seen_count, vocab_)) return false;
            for (int64_t i = 0; i < row_.seen_count; ++i) {
                float* y = place(row_.seen[i]);
                if (!y) continue;
                // From the row itself: an id may stand there twice.
                const float x = row_.logits[row_.seen[i]];
                *y = x > 0.0f ? x / row_.repetition : x * row_.repetition;
            }
        }
        if (counts(row_)) {
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
    SampleStatus change(bool banning) {
        if (listed(row_)) return allow(banning);
        if (repeats(row_) || counts(row_) || row_.biased_count) {
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

    const SampleRow& row_;
    const int64_t vocab_;
    Work& work_;
    Tokens& tokens_;
    Scan& found_;
};

STOLON_END

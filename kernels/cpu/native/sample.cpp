// A row of logits from end to end: restricted, filtered, drawn from, reported.
#include "sample_filters.h"
#include "sample_race.h"
#include "sample_restrict.h"

STOLON_BEGIN

namespace {

constexpr double kGreedyBelow = 1e-5;  // any other token's weight would underflow anyhow

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
               !row_.banned_count && !row_.counted_count && !row_.biased_count && !repeats(row_);
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
        if (listed(row_) && !row_.mask_count) return SampleStatus::NothingAllowed;
        if (row_.mask != MaskForm::Listed) {
            // Whatever is allowed: a row that holds a NaN is broken.
            raw_ = found_ = scan(row_.logits, vocab_, work_.raw_groups);
            if (const auto status = finite(raw_); status != SampleStatus::Ok) return status;
        }
        if (row_.report == Report::Total) {
            out_.logprob = double(raw_.top) + std::log(total_weight(tokens_, raw_.top, 1.0));
            return SampleStatus::Ok;
        }
        const auto status = Restriction(row_, vocab_, work_, tokens_, found_).apply();
        if (status != SampleStatus::Ok) return status;
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

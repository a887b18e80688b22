// Choosing tokens: penalties, masks, filters, the draw and log-probs of a batch of rows, without sorting
// the vocabulary.
//
// Per row, in this order: repetition penalty, frequency and presence penalty, logit bias; mask and bans;
// temperature, top-k, top-p, min-p; an exponential race, in which every token's number is a hash of the
// row's key and the token's id (Gumbel-max, arXiv 1411.0030). A row's result depends on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace stolon {

enum class SampleStatus : int {
    Ok = 0,
    NotANumber,     // a NaN among the logits
    Infinite,       // +inf among the logits
    NothingFinite,  // no allowed token has a finite logit
    NothingAllowed,  // an empty list of allowed ids
    OutOfRange,     // an id outside of the vocabulary
};

// `Listed` is `Allow` on a row of which only the logits of these ids were computed.
enum class MaskForm : int { None = 0, Allow, Deny, Bits, Listed };

// The distribution whose log-probs are reported: of the logits; after division by the temperature; of
// what the token was drawn from. `Total` draws nothing: `logprob` is the log of the sum of e^logit.
enum class Report : int { None = 0, Raw, Tempered, Processed, Total };

struct SampleRow {
    const float* logits;  // [vocab], not changed
    float* lent;          // the same, if no other row has it: may be changed, and is put back; or null
    double temperature;   // below 1e-5: the best token, the lowest id among equals
    int64_t top_k;        // 0: off
    double top_p;         // 1: off
    double min_p;         // 0: off
    uint32_t key[2];      // of the draw

    MaskForm mask;
    const int64_t* mask_ids;    // Allow, Deny, Listed
    const uint8_t* mask_bits;   // Bits: a byte a token, 0 or 1; what lies past its end is not allowed
    int64_t mask_count;
    const int64_t* banned;      // dropped if the mask leaves nothing else
    int64_t banned_count;

    float repetition;           // divides positive logits of `seen`, multiplies the others
    const int64_t* seen;
    int64_t seen_count;
    float frequency, presence;
    const int64_t* counted;     // ids, each once
    const float* counts;
    int64_t counted_count;
    const int64_t* biased;      // ids, each once
    const float* bias;
    int64_t biased_count;

    Report report;  // of a Listed row: None or Processed
    int64_t top;  // alternatives to report
};

struct SampleResult {
    SampleStatus status;
    int64_t token;
    double logprob;         // -inf where the token has no probability
    int64_t top_found;
    int64_t* top_ids;       // [row.top], the caller's; best first, equal ones by id
    double* top_logprobs;   // [row.top]
};

struct SampleArgs {
    const SampleRow* rows;
    SampleResult* results;
    int64_t count;
    int64_t vocab;      // below 2^31
    Counter* counter;   // rows are claimed from it
};

// What `sample` needs of a lane's scratch.
inline size_t sample_work_bytes(int64_t vocab) {
    const size_t places = (size_t(vocab) + 1024 + 1023) / 1024 * 1024;
    return places * (4 * sizeof(float) + 4 * sizeof(uint32_t)) + 4096;
}

}  // namespace stolon

// `sample` and `log_totals` of the module: Python's rows made into SampleRow, results into Python's.
#include <cmath>
#include <limits>
#include <memory>

#include "binding.h"
#include "sample.h"

namespace stolon {

using namespace nb::literals;

namespace {

// Philox4x32-10 (Salmon et al., SC 2011): the first two of its words key the draw of one token.
void draw_key(uint64_t seed, uint64_t sample, uint64_t position, uint32_t* out) {
    uint32_t c0 = uint32_t(position), c1 = uint32_t(position >> 32);
    uint32_t c2 = uint32_t(sample), c3 = uint32_t(sample >> 32);
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = uint64_t(0xD2511F53u) * c0, right = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(right >> 32) ^ c1 ^ k0;
        c1 = uint32_t(right);
        c2 = uint32_t(left >> 32) ^ c3 ^ k1;
        c3 = uint32_t(left);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
}

// What a row points to.
struct Kept {
    std::vector<Array> arrays;
    std::vector<int64_t> banned, seen, counted, biased, top_ids;
    std::vector<float> counts, bias;
    std::vector<double> top_logprobs;
};

// One row of the batch on its way through.
struct Item {
    std::unique_ptr<Kept> kept;
    std::string error;

    Kept& keep() {
        if (!kept) kept = std::make_unique<Kept>();
        return *kept;
    }
};

// Integers of any size as an id: what is no int64 is no id of any vocabulary.
int64_t to_id(nb::handle value) {
    int overflow = 0;
    const long long id = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow) return -1;
    if (id == -1 && PyErr_Occurred()) throw nb::python_error();
    return int64_t(id);
}

uint64_t low_bits(nb::handle value) {
    const uint64_t bits = PyLong_AsUnsignedLongLongMask(value.ptr());
    if (bits == uint64_t(-1) && PyErr_Occurred()) throw nb::python_error();
    return bits;
}

double to_double(nb::handle value) {
    const double x = PyFloat_AsDouble(value.ptr());
    if (x == -1.0 && PyErr_Occurred()) throw nb::python_error();
    return x;
}

void take_ids(nb::handle from, std::vector<int64_t>& out) {
    for (nb::handle id : from) out.push_back(to_id(id));
}

void take_columns(nb::handle from, std::vector<int64_t>& ids, std::vector<float>& values) {
    for (auto [id, value] : nb::cast<nb::dict>(from)) {
        ids.push_back(to_id(id));
        values.push_back(float(to_double(value)));
    }
}

// (form, ids or bits, banned, seen, repetition, counts, frequency, presence, bias)
void take_changes(const nb::tuple& changes, SampleRow& row, Kept& kept) {
    if (changes.size() != 9) throw std::invalid_argument("changes do not have 9 fields");
    const int64_t form = to_id(changes[0]);
    if (form < 0 || form > int(MaskForm::Listed)) throw std::invalid_argument("unknown form of mask");
    row.mask = MaskForm(form);
    if (row.mask != MaskForm::None) {
        const bool bits = row.mask == MaskForm::Bits;
        kept.arrays.push_back(take_array("sample", "mask", changes[1], bits ? Element::U8 : Element::I64, 1));
        const Array& mask = kept.arrays.back();
        row.mask_count = mask.size;
        (bits ? (void)(row.mask_bits = mask.as<uint8_t>()) : (void)(row.mask_ids = mask.as<int64_t>()));
    }
    take_ids(changes[2], kept.banned);
    row.banned = kept.banned.data();
    row.banned_count = int64_t(kept.banned.size());
    const nb::handle seen = changes[3];
    if (nb::ndarray_check(seen)) {
        kept.arrays.push_back(take_array("sample", "seen", seen, Element::I64, 1));
        row.seen = kept.arrays.back().as<int64_t>();
        row.seen_count = kept.arrays.back().size;
    } else if (!seen.is_none()) {
        take_ids(seen, kept.seen);
        row.seen = kept.seen.data();
        row.seen_count = int64_t(kept.seen.size());
    }
    row.repetition = float(to_double(changes[4]));
    if (!nb::handle(changes[5]).is_none()) take_columns(changes[5], kept.counted, kept.counts);
    row.counted = kept.counted.data();
    row.counts = kept.counts.data();
    row.counted_count = int64_t(kept.counted.size());
    row.frequency = float(to_double(changes[6]));
    row.presence = float(to_double(changes[7]));
    if (!nb::handle(changes[8]).is_none()) take_columns(changes[8], kept.biased, kept.bias);
    row.biased = kept.biased.data();
    row.bias = kept.bias.data();
    row.biased_count = int64_t(kept.biased.size());
}

// (temperature, top_k, top_p, min_p, seed, sample, position, report, top, changes or None)
void take_row(const nb::tuple& from, int64_t vocab, SampleRow& row, SampleResult& result, Item& item) {
    if (from.size() != 10) throw std::invalid_argument("a row does not have 10 fields");
    row.temperature = to_double(from[0]);
    row.top_k = to_id(from[1]);
    row.top_p = to_double(from[2]);
    row.min_p = to_double(from[3]);
    draw_key(low_bits(from[4]), low_bits(from[5]), low_bits(from[6]), row.key);
    const int64_t report = to_id(from[7]);
    if (report < 0 || report > int(Report::Processed)) throw std::invalid_argument("unknown report");
    row.report = Report(report);
    row.top = std::min(to_id(from[8]), vocab);
    if (!(row.temperature >= 0.0) || !(row.top_p > 0.0) || !(row.min_p >= 0.0 && row.min_p <= 1.0) || row.top < 0) {
        throw std::invalid_argument("a sampling parameter is out of range");
    }
    if (row.report != Report::None && row.top > 0) {
        Kept& kept = item.keep();
        kept.top_ids.resize(size_t(row.top));
        kept.top_logprobs.resize(size_t(row.top));
        result.top_ids = kept.top_ids.data();
        result.top_logprobs = kept.top_logprobs.data();
    }
    const nb::handle changes = from[9];
    if (!changes.is_none()) take_changes(nb::cast<nb::tuple>(changes), row, item.keep());
    if (row.mask == MaskForm::Listed && row.report != Report::None && row.report != Report::Processed) {
        throw std::invalid_argument("log-probs of logits that were not computed");
    }
}

// Rows of logits: float32 [rows, vocab] of which each row is contiguous.
struct Logits {
    nb::ndarray<nb::ro> held;
    const float* data;
    float* writable;  // null where the array is read-only
    int64_t rows, vocab, stride;
};

Logits take_logits(const char* op, nb::handle value) {
    Logits logits;
    if (!nb::try_cast(value, logits.held, false)) {
        throw nb::type_error((std::string(op) + ": logits is not an array").c_str());
    }
    const auto& held = logits.held;
    const nb::dlpack::dtype type = held.dtype();
    if (held.device_type() != nb::device::cpu::value || type.lanes != 1 || type.bits != 32 ||
        type.code != uint8_t(nb::dlpack::dtype_code::Float)) {
        throw nb::type_error((std::string(op) + ": logits is not float32 in main memory").c_str());
    }
    if (held.ndim() != 2) wrong(op, "logits has " + std::to_string(held.ndim()) + " dimensions, not 2");
    logits.data = static_cast<const float*>(held.data());
    logits.rows = int64_t(held.shape(0));
    logits.vocab = int64_t(held.shape(1));
    logits.stride = held.stride_ptr() ? held.stride(0) : logits.vocab;
    if (logits.vocab < 1 || logits.vocab >= (int64_t(1) << 31)) {
        wrong(op, "logits has " + std::to_string(logits.vocab) + " columns");
    }
    if (logits.rows && held.stride_ptr() && logits.vocab > 1 && held.stride(1) != 1) {
        wrong(op, "a row of logits is not contiguous");
    }
    nb::ndarray<> open;
    logits.writable = nb::try_cast(value, open, false) ? static_cast<float*>(open.data()) : nullptr;
    if (logits.rows && reinterpret_cast<uintptr_t>(logits.data) % sizeof(float)) wrong(op, "logits is not aligned");
    return logits;
}

std::vector<int64_t> take_places(const char* op, nb::handle places, const Logits& logits, int64_t count) {
    std::vector<int64_t> out;
    if (places.is_none()) {
        if (count != logits.rows) {
            wrong(op, std::to_string(count) + " rows for " + std::to_string(logits.rows) + " rows of logits");
        }
        for (int64_t i = 0; i < count; ++i) out.push_back(i);
        return out;
    }
    take_ids(places, out);
    if (int64_t(out.size()) != count) wrong(op, "places does not have a number for every row");
    for (const int64_t place : out) {
        if (place < 0 || place >= logits.rows) {
            wrong(op, "places has " + std::to_string(place) + ", outside [0, " + std::to_string(logits.rows) + ")");
        }
    }
    return out;
}

void run(TeamObject& team, const std::vector<SampleRow>& rows, std::vector<SampleResult>& results, int64_t vocab) {
    nb::gil_scoped_release release;
    Counter counter{0};
    const SampleArgs args{rows.data(), results.data(), int64_t(rows.size()), vocab, &counter};
    const int64_t bytes = int64_t(sample_work_bytes(vocab));
    if (rows.size() <= 1) {  // one lane's work: not worth waking the others
        thread_local Memory scratch;
        if (scratch.bytes() < bytes) scratch = Memory(bytes);
        team.kernels->sample(Lane{0, 1, &team.team, scratch.get(), size_t(bytes)}, args);
        return;
    }
    team.team.reserve_scratch(size_t(bytes));
    team.team.run([&](const Lane& lane) { team.kernels->sample(lane, args); });
}

SampleRow blank(const Logits& logits, int64_t place) {
    SampleRow row{};
    row.logits = logits.data + place * logits.stride;
    row.temperature = row.top_p = 1.0;
    row.repetition = 1.0f;
    return row;
}

nb::object answer(const SampleRow& row, const SampleResult& result, const Item& item) {
    if (!item.error.empty()) return nb::str(item.error.c_str());
    if (result.status != SampleStatus::Ok) return nb::int_(-int64_t(result.status));
    if (row.report == Report::None) return nb::int_(result.token);
    nb::list top;
    for (int64_t i = 0; i < result.top_found; ++i) {
        top.append(nb::make_tuple(result.top_ids[i], result.top_logprobs[i]));
    }
    return nb::make_tuple(result.token, result.logprob, top);
}

nb::list sample(TeamObject& team, nb::handle logits_, const nb::list& rows_, nb::handle places_) {
    const Logits logits = take_logits("sample", logits_);
    const size_t count = rows_.size();
    const std::vector<int64_t> places = take_places("sample", places_, logits, int64_t(count));
    std::vector<SampleRow> rows(count);
    std::vector<SampleResult> results(count);
    std::vector<Item> items(count);
    std::vector<uint32_t> users(size_t(logits.rows));
    for (const int64_t place : places) ++users[size_t(place)];
    for (size_t i = 0; i < count; ++i) {
        rows[i] = blank(logits, places[i]);
        try {
            take_row(nb::cast<nb::tuple>(rows_[i]), logits.vocab, rows[i], results[i], items[i]);
        } catch (const std::exception& error) {
            // A fault in one row must not reach its neighbours: sample something harmless instead.
            items[i].error = *error.what() ? error.what() : "unreadable row";
            rows[i] = blank(logits, places[i]);
            rows[i].temperature = 0.0;
        }
        const bool own = logits.writable && users[size_t(places[i])] == 1 && std::abs(logits.stride) >= logits.vocab;
        rows[i].lent = own ? logits.writable + places[i] * logits.stride : nullptr;
    }
    run(team, rows, results, logits.vocab);
    nb::list out;
    for (size_t i = 0; i < count; ++i) out.append(answer(rows[i], results[i], items[i]));
    return out;
}

nb::list log_totals(TeamObject& team, nb::handle logits_, nb::handle places_) {
    const Logits logits = take_logits("log_totals", logits_);
    const int64_t count = places_.is_none() ? logits.rows : int64_t(nb::len(places_));
    const std::vector<int64_t> places = take_places("log_totals", places_, logits, count);
    std::vector<SampleRow> rows;
    std::vector<SampleResult> results(places.size());
    for (const int64_t place : places) {
        rows.push_back(blank(logits, place));
        rows.back().report = Report::Total;
    }
    run(team, rows, results, logits.vocab);
    nb::list out;
    for (const SampleResult& result : results) {
        out.append(result.status == SampleStatus::Ok ? result.logprob : std::numeric_limits<double>::quiet_NaN());
    }
    return out;
}

}  // namespace

void bind_sample(nb::module_& module) {
    module.def("sample", &sample, "team"_a, "logits"_a, "rows"_a, "places"_a = nb::none(),
               "Choose a token for every row. Described in _native.pyi.");
    module.def("log_totals", &log_totals, "team"_a, "logits"_a, "places"_a = nb::none(),
               "The log of the sum of e^logit of every row; NaN for a row that holds a NaN or nothing finite.");
}

}  // namespace stolon

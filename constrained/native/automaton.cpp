#include "automaton.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace stolon {

namespace {

constexpr int64_t kFar = int64_t{1} << 40;
constexpr size_t kPicked = 6;

uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

// How well a byte reads, for texts that the automaton writes itself.
int liking(int byte) {
    if ((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9')) return 4;
    if (byte >= 'A' && byte <= 'Z') return 3;
    if (byte > ' ' && byte < 127) return 2;
    return byte == ' ' ? 1 : 0;
}

}  // namespace

void Program::prepare() {
    auto check = [](bool ok) {
        if (!ok) throw std::invalid_argument("a program's tables are not consistent");
    };
    auto size = static_cast<int64_t>(code.size());
    check(start >= 0 && start < size && nodes.size() < (1u << 31) && size < (int64_t{1} << 31));
    for (const Instruction& i : code) {
        check(i.depth >= 0 && i.depth <= kMaxLoops && i.loop >= -1 && i.loop < size);
        if (i.op == Instruction::kMatch) {
            check(i.x >= 0 && i.x < static_cast<int64_t>(nodes.size()) && i.y >= 0 && i.y < size);
        } else if (i.op == Instruction::kSplit) {
            check(i.x >= 0 && i.x <= i.y && i.y <= static_cast<int64_t>(targets.size()));
        } else if (i.op == Instruction::kEnter || i.op == Instruction::kLoop) {
            check(i.x >= 0 && i.x < size && i.y >= 0 && i.y < size && i.low >= 0 && i.high >= -1);
            check(i.low < (1 << 30) && i.high < (1 << 30) && i.depth < kMaxLoops + (i.op == Instruction::kLoop));
            check(i.op == Instruction::kEnter || i.depth > 0);
        } else {
            check(i.op == Instruction::kAccept);
        }
    }
    for (const Instruction& i : code) check(i.loop < 0 || code[i.loop].op == Instruction::kLoop);
    for (int64_t t : targets) check(t >= 0 && t < size);
    for (size_t n = 0; n < nodes.size(); n++) {
        Node& node = nodes[n];
        check(node.first <= node.last && node.last <= edges.size());
        node.more = kFar;
        for (uint32_t e = node.first; e < node.last; e++) {
            check(edges[e].to < n && edges[e].low <= edges[e].high);  // edges lead to nodes before
            node.more = std::min(node.more, 1 + nodes[edges[e].to].rest);
        }
        node.rest = node.end ? 0 : node.more;
    }
}

size_t Automaton::Hash::operator()(const Config& c) const {
    uint64_t h = mix(c.pc, (uint64_t{c.node} << 32) | c.entered);
    for (uint32_t n : c.count) h = mix(h, n);
    return h;
}

size_t Automaton::Hash::operator()(const std::vector<uint32_t>& v) const {
    uint64_t h = v.size();
    for (uint32_t n : v) h = mix(h, n);
    return h;
}

Automaton::Automaton(Program program, const Trie* trie, Limits bounds)
    : limits(bounds), program_(std::move(program)), trie_(trie) {
    program_.prepare();
    // Bytes that no edge tells apart share a column.
    bool begins[257] = {true};
    for (const Program::Edge& edge : program_.edges) begins[edge.low] = begins[edge.high + 1] = true;
    for (int byte = 0; byte < 256; byte++) {
        classes_ += begins[byte];
        class_of_[byte] = static_cast<uint8_t>(classes_ - 1);
    }
    path_.resize(trie_->longest + 2);
    runs_.push_back({kDead, {0, 0}, false, 0});
}

uint32_t Automaton::intern(const Config& config) {
    auto [found, added] = config_ids_.try_emplace(config, static_cast<uint32_t>(configs_.size()));
    if (added) {
        configs_.push_back(config);
        seen_.push_back(0);
        memory_ += sizeof(Config) * 2 + 48;
    }
    return found->second;
}

// Everything that can be reached from `pc` without text is added to the set being built.
void Automaton::close(uint32_t pc, const Config& from) {
    todo_.clear();
    Config first = from;
    first.pc = pc;
    first.node = 0;
    first.entered = 0;
    todo_.push_back(first);
    while (!todo_.empty()) {
        Config at = todo_.back();
        todo_.pop_back();
        const Instruction& i = program_.code[at.pc];
        auto go = [&](int64_t to, const Config& with) {
            todo_.push_back(with);
            todo_.back().pc = static_cast<uint32_t>(to);
        };
        if (++work_ > limits.work) return;
        if (i.op == Instruction::kMatch) {
            Config config = at;
            config.node = static_cast<uint32_t>(i.x);
            config.entered = 0;
            uint32_t id = intern(config);
            if (seen_[id] != epoch_) {
                seen_[id] = epoch_;
                set_.push_back(id);
            }
            continue;
        }
        // The node marks a place on the way, apart from any configuration of a state.
        at.node = 0xFFFFFFFF;
        uint32_t id = intern(at);
        if (seen_[id] == epoch_) continue;
        seen_[id] = epoch_;
        if (i.op == Instruction::kAccept) {
            set_accepting_ = true;
        } else if (i.op == Instruction::kSplit) {
            for (int64_t t = i.y; t-- > i.x;) go(program_.targets[t], at);
        } else if (i.op == Instruction::kEnter) {
            if (i.low == 0) go(i.y, at);
            if (i.body) at.entered |= 1u << i.depth;
            at.count[i.depth] = 0;
            go(i.x, at);
        } else {
            int64_t index = i.depth - 1;
            // An iteration without text leads nowhere that leaving at once did not.
            if (at.entered >> index & 1) continue;
            uint32_t count = at.count[index];
            bool more = true, out = true;
            if (count == kBelow) {
                out = false;
            } else if (count != kFree) {
                count++;
                more = i.high < 0 || count < i.high;
                out = count >= i.low;
                if (i.high < 0) count = std::min<uint32_t>(count, i.low);
            }
            if (more) {
                Config again = at;
                again.count[index] = count;
                if (!i.body) again.entered |= 1u << index;
                go(i.x, again);
            }
            if (out) {
                at.count[index] = 0;
                go(i.y, at);
            }
        }
    }
}

int32_t Automaton::intern_set(bool accepting) {
    if (over() || static_cast<int64_t>(set_.size()) > limits.set_size) return kOver;
    if (set_.empty() && !accepting) return kDead;
    std::sort(set_.begin(), set_.end());
    size_t hash = Hash()(set_) * 2 + accepting;
    std::vector<int32_t>& alike = state_ids_[hash];
    for (int32_t id : alike) {
        const State& s = states_[id];
        if (s.accepting == accepting && s.last - s.first == set_.size() &&
            std::equal(set_.begin(), set_.end(), members_.begin() + s.first))
            return id;
    }
    auto id = static_cast<int32_t>(states_.size());
    State state{static_cast<uint32_t>(members_.size()), 0, accepting, false, kUnknown, -1, 0};
    members_.insert(members_.end(), set_.begin(), set_.end());
    state.last = static_cast<uint32_t>(members_.size());
    states_.push_back(state);
    states_.back().closed = set_.empty();
    alike.push_back(id);
    memory_ += sizeof(State) + set_.size() * sizeof(uint32_t) + 80;
    return id;
}

int32_t Automaton::start() {
    work_ = 0;
    epoch_++;
    set_.clear();
    set_accepting_ = false;
    close(static_cast<uint32_t>(program_.start), Config{});
    return intern_set(set_accepting_);
}

int32_t Automaton::step(int32_t state, uint8_t byte) {
    if (over()) return kOver;
    epoch_++;
    set_.clear();
    set_accepting_ = false;
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        Config config = configs_[members_[m]];
        const Program::Node& node = program_.nodes[config.node];
        work_++;
        const Program::Edge* begin = program_.edges.data() + node.first;
        const Program::Edge* end = program_.edges.data() + node.last;
        const Program::Edge* edge =
            std::lower_bound(begin, end, byte, [](const Program::Edge& e, uint8_t b) { return e.high < b; });
        if (edge == end || edge->low > byte) continue;
        const Program::Node& to = program_.nodes[edge->to];
        if (to.first != to.last) {
            config.node = edge->to;
            uint32_t id = intern(config);
            if (seen_[id] != epoch_) {
                seen_[id] = epoch_;
                set_.push_back(id);
            }
        }
        if (to.end) close(static_cast<uint32_t>(program_.code[config.pc].y), config);
        if (work_ > limits.work || static_cast<int64_t>(set_.size()) > limits.set_size) return kOver;
    }
    int32_t to = intern_set(set_accepting_);
    if (to == kOver) return kOver;
    int64_t row = states_[state].row;
    if (row < 0) {
        row = states_[state].row = static_cast<int64_t>(rows_.size());
        rows_.resize(rows_.size() + classes_, kUnknown);
        memory_ += classes_ * sizeof(int32_t);
    }
    rows_[row + class_of_[byte]] = to;
    return to;
}

int32_t Automaton::advance(int32_t state, std::string_view text) {
    work_ = 0;
    for (char c : text) {
        state = next(state, static_cast<uint8_t>(c));
        if (state < 0) return state;
    }
    return state;
}

int32_t Automaton::coarse(int32_t state) {
    if (states_[state].coarse != kUnknown) return states_[state].coarse;
    work_ = 0;
    epoch_++;
    set_.clear();
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        Config config = configs_[members_[m]];
        int64_t loop = program_.code[config.pc].loop;
        for (; loop >= 0; loop = program_.code[loop].loop) {
            const Instruction& i = program_.code[loop];
            uint32_t& count = config.count[i.depth - 1];
            // How many iterations a token may finish, the one under way included.
            int64_t reach = trie_->longest / std::max<int64_t>(i.body, 1) + 2;
            if (count + reach < i.low) {
                count = kBelow;
            } else if (i.high >= 0 && count >= i.low && count + reach < i.high) {
                count = kFree;
            }
        }
        uint32_t id = intern(config);
        if (seen_[id] != epoch_) {
            seen_[id] = epoch_;
            set_.push_back(id);
        }
    }
    int32_t to = intern_set(states_[state].accepting);
    if (to >= 0) {
        states_[state].coarse = to;
        states_[to].coarse = to;
    }
    return to;
}

const Automaton::Run& Automaton::run_of(int32_t state) {
    if (int32_t known = states_[state].run; known > 0) return runs_[known];
    Run run{kDead, {0, 0}, false, 0};
    int32_t to[128];
    int64_t votes = 0;
    for (int byte = 0; byte < 128; byte++) {
        bool again = byte && class_of_[byte] == class_of_[byte - 1];
        to[byte] = again ? to[byte - 1] : next(state, static_cast<uint8_t>(byte));
        if (to[byte] == kOver) return runs_[0];
        if (to[byte] < 0) continue;
        if (votes == 0) run.to = to[byte];  // the majority, if there is one
        votes += to[byte] == run.to ? 1 : -1;
    }
    if (run.to >= 0) {
        for (int byte = 0; byte < 128; byte++)
            if (to[byte] == run.to) run.ascii[byte >> 6] |= uint64_t{1} << (byte & 63);
        run.wide = all_wide_lead(state, run.to);
    }
    states_[state].run = static_cast<int32_t>(runs_.size());
    runs_.push_back(run);
    memory_ += sizeof(Run);
    return runs_.back();
}

uint32_t Automaton::length_of(int32_t state) {
    constexpr uint32_t kEver = 0xFFFFFFFF;
    // Along the states that the characters of this one lead through, up to one that is known.
    chain_.clear();
    uint32_t length = 0;
    while (true) {
        Run run = run_of(state);
        if (run.to < 0) break;
        chain_.push_back(state);
        if (run.length || run.to == state || chain_.size() > trie_->longest) {
            length = run.length ? run.length : run.to == state ? kEver : 1;
            break;
        }
        const Run& after = run_of(run.to);
        bool more = !(run.ascii[0] & ~after.ascii[0]) && !(run.ascii[1] & ~after.ascii[1]) && (after.wide || !run.wide);
        if (!more) {
            length = 1;
            break;
        }
        state = run.to;
    }
    for (size_t i = chain_.size(); i-- > 0;) {
        uint32_t& known = runs_[states_[chain_[i]].run].length;
        if (i + 1 < chain_.size() && length != kEver) length++;
        if (known == 0) known = length;
    }
    return length;
}

bool Automaton::all_wide_lead(int32_t state, int32_t to) {
    struct Place {
        int32_t state;
        int within;
        bool operator==(const Place&) const = default;
    };
    constexpr size_t kPlaces = 64;
    std::vector<Place> places{{state, 0}};
    for (size_t i = 0; i < places.size(); i++) {
        Place at = places[i];
        int32_t after = kDead;
        for (int byte = 128; byte < 256; byte++) {
            if (byte == 128 || class_of_[byte] != class_of_[byte - 1]) after = kUnknown;
            int within = utf8_next(at.within, static_cast<uint8_t>(byte));
            if (within < 0) continue;
            if (after == kUnknown) after = next(at.state, static_cast<uint8_t>(byte));
            if (after < 0 || (within == 0 && after != to)) return false;
            if (within == 0) continue;
            Place place{after, within};
            if (std::find(places.begin(), places.end(), place) != places.end()) continue;
            if (places.size() == kPlaces) return false;
            places.push_back(place);
        }
    }
    return true;
}

bool Automaton::takes_below(int32_t state, uint32_t node) {
    const Trie::Below& below = trie_->below[node];
    if (!below.text) return false;
    const Run* run = &run_of(state);
    if ((below.ascii[0] & ~run->ascii[0]) | (below.ascii[1] & ~run->ascii[1])) return false;
    if (below.wide && !run->wide) return false;
    return below.chars <= (run->length ? run->length : length_of(state));
}

bool Automaton::takes_most(int32_t state) {
    constexpr int kMany = 24;  // fewer characters are seldom most of a vocabulary
    const Run run = run_of(state);
    if (std::popcount(run.ascii[0]) + std::popcount(run.ascii[1]) < kMany) return false;
    size_t taken = 0;
    for (uint32_t at = 0; at < trie_->nodes.size(); at = trie_->nodes[at].skip) {
        uint8_t byte = trie_->nodes[at].byte;
        bool takes = byte < 128 ? run.ascii[byte >> 6] >> (byte & 63) & 1 : run.wide;
        if (takes) taken += trie_->tokens_end(at) - trie_->nodes[at].first;
    }
    return taken > trie_->tokens.size() / 2;
}

bool Automaton::fill(int32_t state, uint32_t* row) {
    work_ = 0;
    return takes_most(state) ? walk<true>(state, row) : walk<false>(state, row);
}

template <bool Most>
bool Automaton::walk(int32_t state, uint32_t* row) {
    constexpr uint32_t kFew = 4;  // nodes that are sooner walked than asked about
    const std::vector<Trie::Node>& nodes = trie_->nodes;
    auto set = [&](uint32_t first, uint32_t last, bool allowed) {
        if (allowed == Most) return;
        for (uint32_t t = first; t < last; t++) {
            uint32_t token = trie_->tokens[t];
            row[token >> 5] ^= 1u << (token & 31);
        }
    };
    if (Most) std::copy(trie_->row.begin(), trie_->row.end(), row);
    path_[0] = state;
    for (uint32_t at = 0; at < nodes.size();) {
        const Trie::Node& node = nodes[at];
        int32_t to = next(path_[node.depth - 1], node.byte);
        if (to < 0) {
            if (to == kOver) return false;
            set(node.first, trie_->tokens_end(at), false);
            at = node.skip;
            continue;
        }
        path_[node.depth] = to;
        set(node.first, node.last, true);
        bool none = states_[to].closed;
        if (none || (node.skip - at > kFew && takes_below(to, at))) {
            set(node.last, trie_->tokens_end(at), !none);
            at = node.skip;
        } else {
            at++;
        }
    }
    return true;
}

int Automaton::live_byte(int32_t state) const {
    int byte = -1;
    for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
        const Program::Node& node = program_.nodes[configs_[members_[m]].node];
        for (uint32_t e = node.first; e < node.last; e++) {
            const Program::Edge& edge = program_.edges[e];
            if (edge.low != edge.high || (byte >= 0 && byte != edge.low)) return 256;
            byte = edge.low;
        }
    }
    return byte;
}

std::pair<std::string, int32_t> Automaton::forced(int32_t state, size_t limit) {
    work_ = 0;
    std::string text;
    while (text.size() < limit && !states_[state].accepting) {
        int byte = live_byte(state);
        if (byte < 0 || byte > 255) break;
        int32_t to = next(state, static_cast<uint8_t>(byte));
        if (to < 0) return {text, kOver};
        text.push_back(static_cast<char>(byte));
        state = to;
    }
    return {text, state};
}

size_t Automaton::mergeable(int32_t state, std::string_view tail, size_t count, std::vector<std::string>& more) {
    size_t found = tail.size();
    size_t begin = tail.size() > trie_->longest ? tail.size() - trie_->longest : 0;
    state = coarse(state);
    if (state < 0) return begin;
    work_ = 0;
    std::vector<std::string> beyond;
    for (size_t at = begin; at < tail.size(); at++) {
        int64_t root = trie_->find(tail.substr(at));
        if (root < 0) continue;
        size_t depth = tail.size() - at;
        size_t branch = 0;  // the node of the first byte beyond the tail
        beyond.clear();
        path_[0] = state;
        for (size_t n = root + 1; n < trie_->nodes[root].skip;) {
            const Trie::Node& node = trie_->nodes[n];
            if (node.depth == depth + 1) branch = n;
            int32_t to = next(path_[node.depth - depth - 1], node.byte);
            if (to < 0) {
                // At a limit nothing is known: count it as allowed.
                if (to == kOver) return begin;
                n = node.skip;
                continue;
            }
            path_[node.depth - depth] = to;
            n++;
            if (node.first < node.last) {
                // One for each first byte is enough.
                beyond.emplace_back(trie_->bytes_of(trie_->tokens[node.first]).substr(depth));
                n = trie_->nodes[branch].skip;
            }
        }
        if (beyond.empty()) continue;
        found = std::min(found, at);
        // A few of them, from all over the bytes.
        size_t picked = std::min(beyond.size(), kPicked);
        for (size_t i = 0; i < picked && more.size() < count; i++) more.push_back(beyond[i * beyond.size() / picked]);
    }
    // What is on the left of a place that no token of the text crosses doesn't depend on what is on its right.
    for (size_t at = found; at-- > 0 && found - at <= trie_->longest;)
        if (at + trie_->match(tail.substr(at)) > found) found = at;
    return found;
}

int64_t Automaton::after(int64_t loop, const Config& config) const {
    int64_t total = 0;
    for (; loop >= 0; loop = program_.code[loop].loop) {
        const Instruction& i = program_.code[loop];
        int64_t done = int64_t{config.count[i.depth - 1]} + 1;
        total += std::max<int64_t>(0, i.low - done) * i.body + i.length;
        total = std::min(total, kFar);
    }
    return total;
}

// The bytes of a shortest text from a configuration to the end.
int64_t Automaton::distance(const Config& config) const {
    const Instruction& i = program_.code[config.pc];
    int64_t tail = i.length - program_.nodes[i.x].rest;
    return std::min(program_.nodes[config.node].more + tail + after(i.loop, config), kFar);
}

bool Automaton::shortest(int32_t state, size_t limit, std::vector<uint32_t>& tokens) {
    work_ = 0;
    std::string text;
    while (!states_[state].accepting) {
        int64_t best = kFar;
        int byte = -1;
        for (uint32_t m = states_[state].first; m < states_[state].last; m++) {
            const Config& config = configs_[members_[m]];
            int64_t far = distance(config);
            if (far > best) continue;
            if (far < best) byte = -1;
            best = far;
            const Program::Node& node = program_.nodes[config.node];
            for (uint32_t e = node.first; e < node.last; e++) {
                const Program::Edge& edge = program_.edges[e];
                if (1 + program_.nodes[edge.to].rest != node.more) continue;
                for (int b = edge.low; b <= edge.high; b++)
                    if (byte < 0 || liking(b) > liking(byte)) byte = b;
            }
        }
        if (byte < 0 || best + static_cast<int64_t>(text.size()) > static_cast<int64_t>(limit)) return false;
        state = next(state, static_cast<uint8_t>(byte));
        if (state < 0) return false;
        text.push_back(static_cast<char>(byte));
    }
    // The fewest tokens, from the end.
    size_t n = text.size();
    constexpr uint32_t kNone = 0xFFFFFFFF;
    std::vector<uint32_t> cost(n + 1, kNone), token(n + 1, 0);
    cost[n] = 0;
    for (size_t at = n; at-- > 0;) {
        uint32_t node = 0, end = static_cast<uint32_t>(trie_->nodes.size());
        for (size_t i = at; i < n; i++) {
            while (node < end && trie_->nodes[node].byte != static_cast<uint8_t>(text[i])) node = trie_->nodes[node].skip;
            if (node >= end) break;
            const Trie::Node& here = trie_->nodes[node];
            if (here.first < here.last && cost[i + 1] != kNone && cost[i + 1] + 1 <= cost[at] - (cost[at] == kNone)) {
                cost[at] = cost[i + 1] + 1;
                token[at] = trie_->tokens[here.first];
            }
            end = here.skip;
            node++;
        }
    }
    if (n && cost[0] == kNone) return false;
    tokens.clear();
    for (size_t at = 0; at < n; at += trie_->bytes_of(token[at]).size()) tokens.push_back(token[at]);
    return true;
}

}  // namespace stolon

#include "isa.h"
#include "kernels.h"

STOLON_BEGIN

void prepare(const Lane&, const PrepareArgs&);
void linear(const Lane&, const LinearArgs&);
void embed(const Lane&, const EmbedArgs&);
void norm(const Lane&, const NormArgs&);
void add(const Lane&, const AddArgs&);
void rotate(const Lane&, const RotateArgs&);
void attention(const Lane&, const AttentionArgs&);
void sample(const Lane&, const SampleArgs&);
extern const int64_t together_rows;
bool by_unit(std::span<const Weight>, std::span<const Weight>);

STOLON_END

namespace stolon {

#define STOLON_JOIN_(a, b) a##b
#define STOLON_JOIN(a, b) STOLON_JOIN_(a, b)
#define STOLON_TEXT_(a) #a
#define STOLON_TEXT(a) STOLON_TEXT_(a)

const Kernels* STOLON_JOIN(kernels_, STOLON_ISA)() {
    namespace isa = STOLON_ISA;
    static const Kernels table{STOLON_TEXT(STOLON_ISA), isa::together_rows, isa::by_unit, isa::prepare, isa::linear,
                               isa::embed, isa::norm, isa::add, isa::rotate, isa::attention,
                               isa::sample};
    return &table;
}

}  // namespace stolon

// The figures that need a GPU: prints one line for each (tests/bench/figure.h). tests/gpu/run starts this.

#include <iostream>

#include "tests/bench/figures.h"
#include "tests/gpu/memory_figures.h"
#include "tests/support/testing.h"

int main() {
  using namespace berth;
  const bench::Programs programs = {.berthd = testing::ProgramPath("daemon/berthd"), .backend = "cuda"};
  return bench::RunFigures({{"block memory", gpu::MemoryFigures}}, programs, /*filter=*/"",
                           bench::Format::kTable);
}

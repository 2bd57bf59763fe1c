#include "kernels/attention/attention_workspace.h"

#include <algorithm>
#include <cstddef>

namespace lynx::kernels {

AttentionWorkspace::AttentionWorkspace(int64_t bytes)
    : bytes_(std::max(bytes, kLeastBytes)),
      lines_(new Line[static_cast<size_t>(bytes_) / sizeof(Line)]) {}

}  // namespace lynx::kernels

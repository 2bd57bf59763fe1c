#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_runner.h"
#include "common/model/model_spec.h"

namespace lynx::cli {

// Bytes that a part of a step reads and floating-point operations it does. Parts run one after the
// other, so each is bound by one of the two.
struct Work {
  double bytes = 0;
  double operations = 0;
};

// Rows that a step computes, and the positions they attend to.
struct StepRows {
  int64_t rows = 0;
  int64_t logits_rows = 0;
  double attended = 0;  // Summed over rows, own position included.
};

// Parts of a step of which `stats` tells what it read: dense projections and routers, attention
// over the cache, experts, output head.
std::vector<Work> WorkOfStep(const model::ModelSpec& spec, const StepRows& rows,
                             const model::StepStats& stats);

double TotalBytes(const std::vector<Work>& parts);
double TotalOperations(const std::vector<Work>& parts);

// The time that the machine's limits allow, every part at the lower of its two roofs.
// bytes_per_second and operations_per_second > 0.
double RoofSeconds(const std::vector<Work>& parts, double bytes_per_second,
                   double operations_per_second);
// Whether any part needs longer for its arithmetic than for its bytes.
bool AnyBoundByArithmetic(const std::vector<Work>& parts, double bytes_per_second,
                          double operations_per_second);

}  // namespace lynx::cli

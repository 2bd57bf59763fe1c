#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lynx::telemetry {

// A family under the name that another system has for it, made of one of ours when it is asked for.
struct MetricAlias {
  const char* name;
  const char* help;
  const char* source;  // Our family; its type is the alias's. Not made where there is none.
  // Series count whose label `label` has one of `values`; empty: all do.
  const char* label = "";
  std::vector<std::string> values = {};
  // What becomes of that label; empty: series that differ in it are summed, as in every other label
  // but model_name.
  const char* kept_as = "";
  // Instead of the source's value, 1 with the values of these gauges, as (label, gauge).
  std::vector<std::pair<const char*, const char*>> values_as_labels = {};
};

// What vLLM calls what routers and nodes measure (docs/metrics.md). The only list of them.
std::span<const MetricAlias> VllmAliases();

}  // namespace lynx::telemetry

#include "services/cli/inspect/inspect.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/config/flag_set.h"
#include "services/cli/inspect/inspect_report.h"
#include "services/cli/inspect/memory_plan.h"
#include "services/cli/inspect/model_inspection.h"

namespace lynx::cli {

int RunInspect(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  std::string model;
  std::string kv_dtype = "bf16";
  bool as_json = false;
  MemoryQuestion question;
  model::ParallelLayout layout{.tp = 1, .dp = 1, .ep = 0};
  config::FlagSet flags("lynx inspect", "Says what a model is, and what it takes to serve it.");
  flags.SetOutput(&out);
  flags.AddPositional("model", &model,
                      "a model's folder, a config.json, or the name of a built-in shape");
  flags.AddBytes("memory", &question.memory_bytes, {0},
                 "memory that a node is to fit in, as 24GiB; 0 does not ask");
  flags.AddInt("context", &question.context, {0, 1 << 24},
               "tokens of each sequence; 0 takes the model's longest");
  flags.AddInt("batch", &question.batch, {1, kMaxPlannedBatch}, "sequences at once");
  flags.AddChoice("kv-dtype", &kv_dtype, {"f32", "bf16"}, "element type of the KV cache");
  flags.AddInt("tp", &layout.tp, {1, model::kMaxRanks},
               "ranks that attention, dense layers and the vocabulary are split over");
  flags.AddInt("dp", &layout.dp, {1, model::kMaxRanks},
               "replicas of these with sequences of their own");
  flags.AddInt(
      "ep", &layout.ep, {0, model::kMaxRanks},
      "parts that the experts are split into, as a node's; 0 takes 1, or with --dp as many "
      "as there are ranks");
  flags.AddInt("ep-spare", &layout.ep_spare, {0, 65536},
               "experts of each layer that a rank holds beyond its part, as copies of others");
  flags.AddBool("json", &as_json, "print JSON");
  const absl::StatusOr<config::ParseOutcome> parsed = flags.Parse(argc, argv);
  if (!parsed.ok() || (*parsed == config::ParseOutcome::kRun && model.empty())) {
    err << "lynx inspect: " << (parsed.ok() ? "which model? See --help" : parsed.status().message())
        << "\n";
    return 2;
  }
  if (*parsed == config::ParseOutcome::kPrinted) return 0;

  const absl::StatusOr<ModelInspection> inspection = InspectModel(model);
  if (!inspection.ok()) {
    err << "lynx inspect: " << inspection.status().message() << "\n";
    return 2;
  }
  std::optional<PlannedMemory> memory;
  if (question.memory_bytes > 0 && inspection->spec.has_value()) {
    question.kv_dtype = DTypeNamed(kv_dtype).value();
    if (question.context == 0) question.context = inspection->spec->max_positions;
    memory = PlannedMemory{.question = question, .plan = PlanMemory(*inspection, question)};
  }
  std::optional<RankPlan> ranks;
  if ((layout.world() > 1 || layout.ep > 1 || layout.ep_spare > 0) &&
      inspection->spec.has_value()) {
    absl::StatusOr<RankPlan> plan = PlanRanks(*inspection, layout);
    if (!plan.ok()) {
      err << "lynx inspect: " << plan.status().message() << "\n";
      return 1;
    }
    ranks = *std::move(plan);
  }
  if (as_json) {
    out << InspectionJson(*inspection, memory, ranks).dump(2) << "\n";
  } else {
    out << InspectionText(*inspection, memory, ranks);
  }
  const bool fits = !memory.has_value() || memory->plan.fits;
  return inspection->problems.empty() && fits ? 0 : 1;
}

}  // namespace lynx::cli

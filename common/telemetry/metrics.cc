#include "common/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/telemetry/process_metrics.h"

namespace lynx::telemetry {

void Counter::Increment(double by) { static_cast<prometheus::Counter*>(impl_)->Increment(by); }
void Gauge::Set(double value) { static_cast<prometheus::Gauge*>(impl_)->Set(value); }
void Gauge::Add(double by) { static_cast<prometheus::Gauge*>(impl_)->Increment(by); }
void Histogram::Observe(double value) {
  static_cast<prometheus::Histogram*>(impl_)->Observe(value);
}

struct Registry::Impl {
  // The library throws on a clash of type or labels; a clash is a bug of ours.
  template <typename Build>
  auto* Family(Build& build, const std::string& name) {
    try {
      return &build.Register(registry);
    } catch (const std::exception& error) {
      LYNX_CHECK_MSG(false, "metric " + name + ": " + error.what());
      std::abort();
    }
  }

  prometheus::Registry registry;
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter Registry::AddCounter(const std::string& name, const std::string& help,
                             const Labels& labels) {
  auto builder = prometheus::BuildCounter().Name(name).Help(help);
  auto* family = impl_->Family(builder, name);
  return Counter(&family->Add(labels));
}

Gauge Registry::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  auto builder = prometheus::BuildGauge().Name(name).Help(help);
  auto* family = impl_->Family(builder, name);
  return Gauge(&family->Add(labels));
}

Histogram Registry::AddHistogram(const std::string& name, const std::string& help,
                                 std::span<const double> bounds, const Labels& labels) {
  auto builder = prometheus::BuildHistogram().Name(name).Help(help);
  auto* family = impl_->Family(builder, name);
  return Histogram(
      &family->Add(labels, prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end())));
}

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const MetricFamily* Find(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto found = std::ranges::find(families, name, &MetricFamily::name);
  return found == families.end() ? nullptr : &*found;
}

std::string LabelOf(const ClientMetric& metric, std::string_view name) {
  const auto found = std::ranges::find(metric.label, name, &ClientMetric::Label::name);
  return found == metric.label.end() ? std::string() : found->value;
}

void AddTo(ClientMetric& sum, const ClientMetric& metric) {
  sum.counter.value += metric.counter.value;
  sum.gauge.value += metric.gauge.value;
  sum.histogram.sample_count += metric.histogram.sample_count;
  sum.histogram.sample_sum += metric.histogram.sample_sum;
  if (sum.histogram.bucket.empty()) {
    sum.histogram.bucket = metric.histogram.bucket;
    return;
  }
  LYNX_CHECK(sum.histogram.bucket.size() == metric.histogram.bucket.size());
  for (size_t i = 0; i < metric.histogram.bucket.size(); ++i) {
    sum.histogram.bucket[i].cumulative_count += metric.histogram.bucket[i].cumulative_count;
  }
}

MetricFamily Alias(const MetricAlias& alias, const MetricFamily& source,
                   const std::vector<MetricFamily>& families, const Labels& constant) {
  MetricFamily family{.name = alias.name, .help = alias.help, .type = source.type, .metric = {}};
  std::map<Labels, ClientMetric> sums;
  for (const ClientMetric& metric : source.metric) {
    const std::string value = LabelOf(metric, alias.label);
    if (!alias.values.empty() && std::ranges::find(alias.values, value) == alias.values.end()) {
      continue;
    }
    Labels labels = constant;
    if (const std::string model = LabelOf(metric, "model_name"); !model.empty()) {
      labels["model_name"] = model;
    }
    if (*alias.kept_as != '\0') labels[alias.kept_as] = value;
    AddTo(sums[labels], metric);
  }
  for (auto& [labels, sum] : sums) {
    for (const auto& [name, label_value] : labels) sum.label.push_back({name, label_value});
    for (const auto& [name, gauge] : alias.values_as_labels) {
      const MetricFamily* const from = Find(families, gauge);
      if (from == nullptr) continue;
      sum.label.push_back(
          {name, absl::StrCat(static_cast<int64_t>(from->metric.front().gauge.value))});
      sum.gauge.value = 1;
    }
    family.metric.push_back(std::move(sum));
  }
  return family;
}

}  // namespace

std::string Registry::RenderAliases(std::span<const MetricAlias> aliases,
                                    const Labels& constant) const {
  const std::vector<MetricFamily> families = impl_->registry.Collect();
  std::vector<MetricFamily> renamed;
  for (const MetricAlias& alias : aliases) {
    const MetricFamily* const source = Find(families, alias.source);
    if (source != nullptr) renamed.push_back(Alias(alias, *source, families, constant));
  }
  return prometheus::TextSerializer().Serialize(renamed);
}

void AddBuildInfo(Registry& registry, const std::string& version, const std::string& isa) {
  registry
      .AddGauge("lynx_build_info", "Constant 1; the labels say what runs.",
                {{"version", version}, {"isa", isa}})
      .Set(1);
}

std::string Registry::Render() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect()) + RenderProcessMetrics();
}

}  // namespace lynx::telemetry

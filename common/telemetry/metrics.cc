#include "common/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <vector>

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

#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/telemetry/metric_alias.h"

// Metrics of one process, rendered in the Prometheus text format.
//
// Names: lynx_<component>_<what>_<unit>[_total]; base units; label values from closed sets, never
// text a client can choose. Create every series at start-up, so that it reads 0 before its first
// event, and keep the reference: look-ups are slow, updates are not.
namespace lynx::telemetry {

// Handles stay valid as long as their Registry. Thread-safe.
class Counter {
 public:
  void Increment(double by = 1);

 private:
  friend class Registry;
  explicit Counter(void* impl) : impl_(impl) {}
  void* impl_;
};

class Gauge {
 public:
  void Set(double value);
  void Add(double by);

 private:
  friend class Registry;
  explicit Gauge(void* impl) : impl_(impl) {}
  void* impl_;
};

class Histogram {
 public:
  void Observe(double value);

 private:
  friend class Registry;
  explicit Histogram(void* impl) : impl_(impl) {}
  void* impl_;
};

using Labels = std::map<std::string, std::string>;

// Thread-safe. The same name and labels give the same series; a name may have one type and one help
// text only (anything else aborts: it is our bug).
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         std::span<const double> bounds, const Labels& labels = {});

  // `text/plain; version=0.0.4` exposition of every series, process_* included.
  std::string Render() const;

  // The same of families under other names, each with the labels `constant` beside its own.
  std::string RenderAliases(std::span<const MetricAlias> aliases, const Labels& constant) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// lynx_build_info, which is how dashboards and alerts find the processes there are: every process
// has it from its start. `isa` is that of the kernels, "-" without any.
void AddBuildInfo(Registry& registry, const std::string& version, const std::string& isa);

// Content-Type that goes with Registry::Render().
inline constexpr char kExpositionContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace lynx::telemetry

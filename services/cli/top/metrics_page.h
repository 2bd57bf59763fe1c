#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lynx::cli {

// A page of metrics in the Prometheus text format, as far as a view of a cluster needs it. Lines
// that are none of that format are passed over.
class MetricsPage {
 public:
  static MetricsPage Parse(std::string_view text);

  // Over all series of the name that have these labels, whatever else they have; 0: there is none.
  using Labels = std::map<std::string, std::string>;
  double Sum(const std::string& name, const Labels& labels = {}) const;

  // Of a histogram, all its series taken together: observations up to each bound.
  std::map<double, double> Buckets(const std::string& name) const;

 private:
  struct Series {
    Labels labels;
    double value;
  };
  std::multimap<std::string, Series> series_;
};

// The quantile `share` of what a histogram saw between two pages, by linear interpolation within
// its bucket as Prometheus does it; the last finite bound where it lies beyond. Below 0: it saw
// nothing.
double QuantileBetween(const MetricsPage& before, const MetricsPage& after,
                       const std::string& histogram, double share);

}  // namespace lynx::cli

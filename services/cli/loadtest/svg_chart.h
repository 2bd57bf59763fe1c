#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lynx::loadtest {

// One line, or cloud of points, of a chart.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending for lines.
  bool dots = false;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;  // At most 6: there are as many colours.
  bool log_x = false;          // Points at x <= 0 are left out.
  bool y_is_share = false;     // From 0 to 1, written as per cent.
  double y_line = -1;  // A dashed line across at this height, unless far over the rest; < 0: none.
};

// The chart as an <svg> element that scales with its place, and a legend in HTML below it. Colours
// are the classes s0 to s5, which the page's style sheet sets; any text is safe in names. Values
// that are not finite are left out.
std::string ToSvg(const Chart& chart);

// A histogram of `values` in `bars` bars of equal width, as a chart. The top per cent lands in the
// last bar, so that one slow request does not squeeze all others into the first.
std::string HistogramSvg(std::string_view title, std::string_view x_label,
                         std::vector<double> values, int bars);

std::string EscapeHtml(std::string_view text);

}  // namespace lynx::loadtest

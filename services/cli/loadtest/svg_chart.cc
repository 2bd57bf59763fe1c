#include "services/cli/loadtest/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "services/cli/loadtest/statistics.h"

namespace lynx::loadtest {
namespace {

// Small, so that text stays readable where the chart is scaled down to a phone.
constexpr double kWidth = 480;
constexpr double kHeight = 250;
constexpr double kLeft = 64;
constexpr double kRight = 12;
constexpr double kTop = 12;
constexpr double kBottom = 44;
constexpr size_t kColours = 6;

// 1, 2 or 5 times a power of ten, so that some `count` of them span `range`.
double NiceStep(double range, int count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string Number(double value) {
  if (value == 0 || std::abs(value) < 1e-12) return "0";
  return absl::StrFormat("%.4g", value);
}

// One axis: where a value goes, and where its marks are.
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool log)
      : low_(low), high_(high), from_(from), to_(to), log_(log) {
    if (!(high_ > low_)) high_ = log_ ? low_ * 10 : low_ + 1;
  }

  double At(double value) const {
    const double share =
        log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
  }

  std::vector<double> Marks(int count) const {
    std::vector<double> marks;
    if (log_) {
      const double decades = std::log10(high_ / low_);
      for (int e = static_cast<int>(std::floor(std::log10(low_))); e <= 12; ++e) {
        for (const double factor : {1.0, 2.0, 5.0}) {
          const double mark = factor * std::pow(10, e);
          if (mark > high_ * 1.0001) return marks;
          if (mark >= low_ * 0.9999 && (factor == 1 || decades < 3)) marks.push_back(mark);
        }
      }
      return marks;
    }
    const double step = NiceStep(high_ - low_, count);
    for (double k = std::ceil(low_ / step - 1e-9); k * step <= high_ + 1e-9 * step; ++k) {
      marks.push_back(k * step);
    }
    return marks;
  }

 private:
  double low_;
  double high_;
  double from_;
  double to_;
  bool log_;
};

struct Bounds {
  double low = std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::lowest();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool Drawable(const Chart& chart, const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second) &&
         (!chart.log_x || point.first > 0);
}

std::string Frame(const Chart& chart, const Axis& x, const Axis& y) {
  std::string svg;
  for (const double mark : y.Marks(5)) {
    const double at = y.At(mark);
    const std::string text =
        chart.y_is_share ? absl::StrFormat("%.0f%%", 100 * mark) : Number(mark);
    absl::StrAppendFormat(&svg,
                          "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          kLeft, kWidth - kRight, at, at, kLeft - 6, at + 4, text);
  }
  for (const double mark : x.Marks(6)) {
    const double at = x.At(mark);
    absl::StrAppendFormat(&svg,
                          "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                          at, at, kTop, kHeight - kBottom, at, kHeight - kBottom + 16,
                          Number(mark));
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>"
      "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 8, EscapeHtml(chart.x_label),
      (kTop + kHeight - kBottom) / 2, EscapeHtml(chart.y_label));
  return svg;
}

std::string Open(std::string_view title) {
  return absl::StrFormat(
      "<figure><figcaption>%s</figcaption>"
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">\n",
      EscapeHtml(title), kWidth, kHeight, EscapeHtml(title));
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : ReplaceInvalidUtf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string ToSvg(const Chart& chart) {
  Bounds xs;
  Bounds ys;
  ys.Add(0);
  if (chart.y_is_share) ys.Add(1);
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) {
      if (!Drawable(chart, point)) continue;
      xs.Add(point.first);
      ys.Add(point.second);
    }
  }
  if (xs.low > xs.high) return "";  // Nothing to draw.
  // A limit far over everything would press all else to the floor.
  const bool with_line = chart.y_line >= 0 && chart.y_line <= 2 * ys.high;
  if (with_line) ys.Add(chart.y_line);
  const Axis x(xs.low, xs.high, kLeft, kWidth - kRight, chart.log_x);
  const Axis y(ys.low, ys.high, kHeight - kBottom, kTop, false);
  std::string svg = Open(chart.title) + Frame(chart, x, y);
  std::string legend;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const size_t colour = i % kColours;
    std::string line;
    for (const auto& point : series.points) {
      if (!Drawable(chart, point)) continue;
      if (series.dots) {
        absl::StrAppendFormat(&svg, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>",
                              colour, x.At(point.first), y.At(point.second));
      } else {
        absl::StrAppendFormat(&line, "%.1f,%.1f ", x.At(point.first), y.At(point.second));
      }
    }
    if (!line.empty()) {
      absl::StrAppendFormat(&svg, "<polyline class=\"l s%d\" points=\"%s\"/>\n", colour, line);
    }
    absl::StrAppendFormat(&legend, "<span><i class=\"s%d\"></i>%s</span> ", colour,
                          EscapeHtml(series.name));
  }
  if (with_line) {
    absl::StrAppendFormat(
        &svg, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", kLeft,
        kWidth - kRight, y.At(chart.y_line), y.At(chart.y_line));
  }
  return absl::StrCat(svg, "</svg><div class=\"legend\">", legend, "</div></figure>\n");
}

std::string HistogramSvg(std::string_view title, std::string_view x_label,
                         std::vector<double> values, int bars) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return "";
  std::sort(values.begin(), values.end());
  const double low = values.front();
  double high = Percentile(values, 0.99);
  if (!(high > low)) high = low + std::max(1e-9, std::abs(low) * 0.01);
  std::vector<double> counts(static_cast<size_t>(bars));
  for (const double value : values) {
    const double at = std::floor((value - low) / (high - low) * bars);
    counts[static_cast<size_t>(std::clamp(at, 0.0, static_cast<double>(bars - 1)))] += 1;
  }
  const Axis x(low, high, kLeft, kWidth - kRight, false);
  const Axis y(0, *std::max_element(counts.begin(), counts.end()), kHeight - kBottom, kTop, false);
  const Chart chart{.title = std::string(title),
                    .x_label = std::string(x_label),
                    .y_label = "requests",
                    .series = {}};
  std::string svg = Open(title) + Frame(chart, x, y);
  const double width = (kWidth - kRight - kLeft) / bars;
  for (int i = 0; i < bars; ++i) {
    const double top = y.At(counts[static_cast<size_t>(i)]);
    absl::StrAppendFormat(
        &svg, "<rect class=\"s0\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
        kLeft + i * width, top, width * 0.9, kHeight - kBottom - top);
  }
  return svg + "</svg></figure>\n";
}

}  // namespace lynx::loadtest

// SPDX-License-Identifier: Apache-2.0
#include "bench/link_times.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/link_records.h"

namespace koho::bench {
namespace {

constexpr double kBytesPerUs = 345e3;  // that an H200 sends to its peers: 339 to 348 GB/s measured

struct Point {
  double bytes = 0.0;
  double us = 0.0;
};

/// The times of one form among so many GPUs, by ascending size.
struct Curve {
  std::string form;  // "one-shot" or "two-shot"
  std::int64_t ranks = 0;
  std::string machine, date;
  std::vector<Point> points;

  /// Interpolated; beyond the last point proportional to the bytes.
  double at(double bytes) const {
    const auto next = std::find_if(points.begin(), points.end(),
                                   [&](const Point& p) { return p.bytes >= bytes; });
    if (next == points.begin()) return points.front().us;
    if (next == points.end()) return points.back().us * bytes / points.back().bytes;
    const Point& before = *(next - 1);
    return before.us +
           (next->us - before.us) * (bytes - before.bytes) / (next->bytes - before.bytes);
  }
};

std::vector<Curve> read_curves() {
  std::vector<Curve> curves;
  const auto records = nlohmann::json::parse(link_records(), nullptr, false);
  for (const auto& record : records)
    for (const auto& row : record.value("rows", nlohmann::json::array())) {
      const std::string form = row.value("form", "");
      if (row.value("op", "") != "all_reduce" || (form != "one-shot" && form != "two-shot"))
        continue;
      const auto& shape = row.at("shape");
      const std::int64_t ranks = shape.value("ranks", std::int64_t{0});
      const std::string date = record.value("date", "");
      auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& c) {
        return c.form == form && c.ranks == ranks && c.date == date;
      });
      if (curve == curves.end())
        curve =
            curves.insert(curves.end(), Curve{form, ranks, record.value("machine", ""), date, {}});
      curve->points.push_back(
          {2.0 * shape.value("tokens", 0.0) * shape.value("hidden", 0.0), row.value("us", 0.0)});
    }
  for (Curve& curve : curves)
    std::sort(curve.points.begin(), curve.points.end(),
              [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
  return curves;
}

/// What a rank sends.
double sent_bytes(const Curve& curve, std::int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return curve.form == "one-shot" ? (n - 1.0) * bytes : 2.0 * (n - 1.0) / n * bytes;
}

}  // namespace

LinkTime all_reduce_time(std::int64_t ranks, std::int64_t message_bytes) {
  const std::vector<Curve> curves = read_curves();
  const auto bytes = static_cast<double>(message_bytes);
  // The nearest number of ranks counts, of one the latest measurement.
  const auto distance = [&](const Curve& curve) { return std::llabs(curve.ranks - ranks); };
  const auto better = [&](const Curve& a, const Curve& b) {
    return distance(a) != distance(b) ? distance(a) < distance(b) : a.date > b.date;
  };
  std::optional<LinkTime> best;
  for (const std::string_view form : {"one-shot", "two-shot"}) {
    const Curve* chosen = nullptr;
    for (const Curve& curve : curves)
      if (curve.form == form && (chosen == nullptr || better(curve, *chosen))) chosen = &curve;
    if (chosen == nullptr) continue;
    const double more =
        sent_bytes(*chosen, ranks, bytes) - sent_bytes(*chosen, chosen->ranks, bytes);
    const double us = std::max(chosen->at(bytes) + more / kBytesPerUs, 0.0);
    if (best && best->us <= us) continue;
    best =
        LinkTime{us, fmt::format("{}, {}, {}{}", form, chosen->machine, chosen->date,
                                 chosen->ranks == ranks
                                     ? ""
                                     : fmt::format(", corrected from {} ranks to {} by the bytes "
                                                   "sent",
                                                   chosen->ranks, ranks))};
  }
  return best.value_or(LinkTime{0.0, "not measured"});
}

}  // namespace koho::bench

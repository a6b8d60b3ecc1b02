#include "src/reproduce/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "src/base/assert.h"
#include "src/reproduce/check_file.h"

namespace verbena::reproduce {

namespace {

bool speaks_of(const Check& check, std::string_view experiment) {
  for (const Part& part : check.parts) {
    for (const Selection* selection : selections_of(part)) {
      if (selection->experiment == experiment) return true;
    }
  }
  return false;
}

}  // namespace

const PaperChecks& Catalog::paper_of(const Claim& claim) const {
  const auto place = places_.find(claim.id);
  VERBENA_ASSERT(place != places_.end());
  return papers[place->second.first];
}

const Check& Catalog::check_of(const Claim& claim) const {
  return paper_of(claim).checks[places_.find(claim.id)->second.second];
}

Result<Catalog> read_catalog(const std::string& folder) {
  Catalog catalog;
  VERBENA_ASSIGN_OR_RETURN(catalog.claims, read_claims(folder + "/claims.csv"));
  std::set<std::string> ids;
  std::vector<std::string> names;  // of papers, in the order of their claims
  for (const Claim& claim : catalog.claims) {
    ids.insert(claim.id);
    if (std::find(names.begin(), names.end(), claim.paper) == names.end()) {
      names.push_back(claim.paper);
    }
  }
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/checks/{}.toml", folder, name);
    VERBENA_ASSIGN_OR_RETURN(PaperChecks paper, read_check_file(path));
    for (size_t i = 0; i < paper.checks.size(); ++i) {
      const std::string& id = paper.checks[i].id;
      const bool known = ids.contains(id);
      if (known && catalog.places_.emplace(id, std::pair(catalog.papers.size(), i)).second)
        continue;
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{}: {} '{}'", path, known ? "a second check of" : "there is no claim", id));
    }
    catalog.papers.push_back(std::move(paper));
  }
  const std::string spent_path = folder + "/spent.toml";
  VERBENA_ASSIGN_OR_RETURN(catalog.spent, read_spent_list(spent_path));
  for (const auto& [id, by] : catalog.spent) {
    if (ids.contains(id)) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: there is no claim '{}'", spent_path, id));
  }
  for (const std::string& id : ids) {
    if (catalog.places_.contains(id)) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the claim '{}' has no check", folder, id));
  }
  return catalog;
}

Result<std::set<std::string>> select_claims(const Catalog& catalog, std::string_view what) {
  std::set<std::string> chosen;
  for (const Claim& claim : catalog.claims) {
    if (what == "all" || what == claim.paper || speaks_of(catalog.check_of(claim), what)) {
      chosen.insert(claim.id);
    }
  }
  if (!chosen.empty()) return chosen;
  std::vector<std::string> papers;
  for (const PaperChecks& paper : catalog.papers) papers.push_back(paper.paper);
  return Status(StatusCode::kNotFound,
                fmt::format("no claim is checked by '{}'; there are all, the papers {}, and their "
                            "figures by the names of the files in experiments/, such as "
                            "msgproto-fig10a",
                            what, fmt::join(papers, ", ")));
}

Result<std::vector<WantedPoint>> wanted_points(const Catalog& catalog, const PaperChecks& paper,
                                               const std::set<std::string>& chosen,
                                               Experiments& experiments) {
  std::vector<WantedPoint> wanted;
  std::map<PointKey, size_t> places;
  for (const Claim& claim : catalog.claims) {
    if (claim.paper != paper.paper || !chosen.contains(claim.id)) continue;
    for (const Part& part : catalog.check_of(claim).parts) {
      for (const Selection* selection : selections_of(part)) {
        const auto points = experiments.points(*selection, paper.uses);
        if (!points.ok()) {
          return Status(points.status().code(),
                        fmt::format("the check of {}: {}", claim.id, points.status().message()));
        }
        const auto use = paper.uses.find(selection->experiment);
        const Use own = use != paper.uses.end() ? use->second : Use{};
        const uint64_t duration_ns = own.duration_ns != 0 ? own.duration_ns : paper.duration_ns;
        for (const bench::Point& point : *points) {
          const auto [found, added] = places.emplace(bench::key_of(point), wanted.size());
          if (added) wanted.push_back({.point = point});
          WantedPoint& one = wanted[found->second];
          one.duration_ns = std::max(one.duration_ns, duration_ns);
          one.operations = std::max(one.operations, own.operations);
        }
      }
    }
  }
  return wanted;
}

}  // namespace verbena::reproduce

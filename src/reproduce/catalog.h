// All claims, and the one check of each.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/reproduce/check.h"
#include "src/reproduce/claim.h"
#include "src/reproduce/experiments.h"
#include "src/reproduce/spent_list.h"
#include "verbena/status.h"

namespace verbena::reproduce {

struct Catalog {
  std::vector<Claim> claims;
  std::vector<PaperChecks> papers;
  SpentClaims spent;

  const PaperChecks& paper_of(const Claim& claim) const;
  const Check& check_of(const Claim& claim) const;

 private:
  friend Result<Catalog> read_catalog(const std::string& folder);
  std::map<std::string, std::pair<size_t, size_t>> places_;  // by id: paper, check
};

// claims.csv, spent.toml and checks/*.toml of a folder. kInvalidArgument also where a claim has no
// check or two, or a check or an entry of spent.toml no claim.
Result<Catalog> read_catalog(const std::string& folder);

// The ids of the claims that "all", a paper or an experiment means; kNotFound says what there is.
Result<std::set<std::string>> select_claims(const Catalog& catalog, std::string_view what);

// A point that has to be measured, and how long.
struct WantedPoint {
  bench::Point point;
  uint64_t duration_ns = 0;
  uint64_t operations = 0;  // else 0, and as long as that
};

// Each point once that the chosen claims of a paper need.
Result<std::vector<WantedPoint>> wanted_points(const Catalog& catalog, const PaperChecks& paper,
                                               const std::set<std::string>& chosen,
                                               Experiments& experiments);

}  // namespace verbena::reproduce

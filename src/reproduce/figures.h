// The papers' figures as they came out, with what is stated about them: data for the report page.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/reproduce/catalog.h"
#include "src/reproduce/verdict.h"

namespace verbena::reproduce {

// One object per experiment and topology that was measured, in the order of the claims:
//   experiment, paper, topology, x (name of the abscissa), metric, unit
//   lines   [{protocol, variant, x: [...], y: [...]}]; lines of one variant belong together
//   stated  [{claim, protocol, variant, x, low, high, text, verdict}]
// The metric is that of most of its checks that state numbers, else of most of all.
nlohmann::json figures_json(const Catalog& catalog, const std::vector<Verdict>& verdicts,
                            const std::map<std::string, PaperData>& papers,
                            Experiments& experiments);

}  // namespace verbena::reproduce

"""What this distribution offers to the host: names and import strings."""

from icml_core import Component, Paper, hookimpl

PACKAGE = "icml_flashschnet"


@hookimpl
def icml_paper():
    return Paper(
        title="FlashSchNet: Fast and Accurate Coarse-Grained Neural Network Molecular Dynamics",
        arxiv="2602.13140",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "flashschnet.schnet",
            f"{PACKAGE}.schnet:FlashSchNet",
            summary="SchNet potential of coarse-grained proteins with fused energies and exact forces",
            implements=("Module",),
            example=f"{PACKAGE}.examples:schnet",
        ),
        Component(
            "flashschnet.cg_prior",
            f"{PACKAGE}.prior:CGPrior",
            summary="classical prior of a coarse-grained protein: bonds, angles, dihedrals, repulsion",
            implements=("Module",),
            example=f"{PACKAGE}.examples_dynamics:cg_prior",
        ),
        Component(
            "flashschnet.demo_model",
            f"{PACKAGE}.demo:demo_model",
            summary="the small model that ships with the package; its job trains it anew from scratch",
            job=f"{PACKAGE}.jobs:demo_model",
            requires=("openmm>=8.2", "PeptideBuilder>=1.1"),
        ),
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "flashschnet.force_match",
            f"{PACKAGE}.force_matching:ForceMatcher",
            summary="trains a potential on mapped all-atom forces, prior included",
            implements=("Trainer",),
            example=f"{PACKAGE}.examples:force_match",
            job=f"{PACKAGE}.jobs:force_match",
        )
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "flashschnet.compress",
            f"{PACKAGE}.compression:TableCompressor",
            summary="replaces the filter networks of a trained model by tables, with measured errors",
            implements=("Solver",),
            example=f"{PACKAGE}.examples:compress",
        )
    ]


@hookimpl
def icml_samplers():
    return [
        Component(
            "flashschnet.langevin",
            f"{PACKAGE}.simulation:LangevinSimulator",
            summary="Langevin dynamics of many replicas of a protein from its PDB file",
            implements=("Sampler",),
            example=f"{PACKAGE}.examples_dynamics:langevin",
            job=f"{PACKAGE}.jobs:langevin",
        ),
        Component(
            "flashschnet.reference_data",
            f"{PACKAGE}.reference_data:reference_set",
            summary="all-atom simulations of peptides and proteins by OpenMM, mapped to beads, to train on",
            job=f"{PACKAGE}.jobs:reference_data",
            requires=("openmm>=8.2", "PeptideBuilder>=1.1"),
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "flashschnet.structure",
            f"{PACKAGE}.structure_evaluation:StructureEvaluator",
            summary="RMSD, native contacts and radius of gyration of a trajectory against a structure",
            implements=("Evaluator",),
            example=f"{PACKAGE}.examples_dynamics:structure",
        )
    ]


@hookimpl
def icml_claims():
    return f"{PACKAGE}.claims:suite"
